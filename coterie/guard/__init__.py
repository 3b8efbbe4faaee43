"""What stands between a data set and the world: claims, meters, sessions, checkpoints, secret randomness.

**Blocks.** A block of rounds lies between two checkpoints (`session.py`). It is reserved in every ledger
before its first round, and committed after its checkpoint is on disk, in one transaction with the
reservation of the next block. A simulated training that is killed resumes to the same bits; a metered one
draws and charges the rounds since the checkpoint afresh. After Ctrl-C a training ends its round and writes
its checkpoint, and the rounds that were not done are given back. Repeated rounds are refused before they
cost anything if no silo can pay for them.

**Leaving.** A silo whose budget covers only some rounds of a single run is told so when the run begins, and
leaves when they are used up; the others continue. That changes neither noise nor denominators. It is sound
for secret draws too: coins are independent, so knowing that one silo is away tells nothing about the
others.

**Noise.** A reservation draws 32 bytes from the operating system. With the silo's secret and the row's hash
they key an AES keystream, from which coins and noise are drawn exactly (`coterie.noise`). Keys are replaced
every eight rounds, and each call of a door is answered once. Noise of merges is keyed by the secrets and
rows of all silos that reserved the round. Digests in ledgers cover only the shared state where what silos
keep is raw.

**Secret coins.** Where epsilon rests on secret coins (Poisson cohorts, noise added by the server), a
metered run tosses them round by round from the system's entropy and keeps them nowhere, not even in a
checkpoint. Claims, results and statements do not depend on them. A repeated round is drawn anew: with the
first coins, both answers would be one sampled release with less noise, which costs more than the two
sampled releases that are charged. Draws of fixed size are seeded and public, so metered statements claim no
more against anyone who holds the shared model than against all other silos together.
"""
