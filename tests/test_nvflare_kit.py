"""Kits hold what Coterie wrote, and `check_kit` says all that is wrong with one."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta

import pytest

from coterie.errors import Problem
from coterie.network.nvflare.certificates import certificate_problems
from coterie.network.nvflare.kit import Record, check_kit, follow_move, make_kits, read_party
from coterie.network.nvflare.settings import IDENTITY, SCHEME

RECORD = Record("clinics", "localhost", 8002, ("north", "south"), "charity", 30)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Kits of two federations, of which the second has the same names."""
    folder = tmp_path_factory.mktemp("kits")
    return make_kits(RECORD, folder / "one"), make_kits(RECORD, folder / "two")


@pytest.fixture
def kit(made, tmp_path):
    """A copy of a silo's kit that a test may spoil."""
    return shutil.copytree(made[0]["north"], tmp_path / "north")


def change(kit, name, *keys_and_value):
    """Set one value in one of the kit's files."""
    path = kit / name
    content = json.loads(path.read_text())
    *keys, last, value = keys_and_value
    inner = content
    for key in keys:
        inner = inner[key]
    inner[last] = value
    path.write_text(json.dumps(content))


def test_kits_are_in_order_and_their_keys_private(made):
    for kit in made[0].values():
        assert check_kit(kit) == []
        assert check_kit(kit, "clinics") == []
        (key,) = (kit / "startup").glob("*.key")
        assert key.stat().st_mode & 0o777 == 0o600
        assert not list(kit.rglob("*.sh"))  # NVFlare's own scripts would start a node that obeys the server
    authority = made[0]["north"].parent / "authority"
    assert (authority / "rootCA.key").stat().st_mode & 0o777 == 0o600
    assert authority.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in authority.iterdir()} == {"rootCA.key", "rootCA.pem"}


def test_settings_allow_no_more_than_coterie_needs(made):
    kit = made[0]["north"]
    resources = json.loads((kit / "local/resources.json").read_text())
    assert resources["class_allow_list"] == ["coterie.network.nvflare.executor.GuardExecutor"]
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert resources["allow_log_streaming"] is False
    assert "site_log_streamer" not in {component["id"] for component in resources["components"]}
    roles = json.loads((kit / "local/authorization.json").read_text())["permissions"]
    assert set(roles) == {"project_admin", "org_admin", "lead", "member"}
    for role, rights in roles.items():
        assert isinstance(rights, dict)
        assert (
            rights["byoc"]
            == rights["shell_commands"]
            == rights["operate"]
            == rights["download_job"]
            == "none"
        )
        assert set(rights.values()) == {"none"} or role == "lead"
    client = json.loads((kit / "startup/fed_client.json").read_text())
    assert client["require_signed_jobs"] is True
    assert client["client"]["connection_security"] == "mtls"


def test_startup_files_are_those_that_nvflare_would_write(made, tmp_path):
    from nvflare.lighter.entity import Participant, Project
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    project = Project("clinics", "")
    server = {"fed_learn_port": 8002, "default_host": "localhost"}
    project.add_participant(Participant("server", IDENTITY, "charity", server))
    project.add_client("north", "charity", {})
    admin = made[0]["coordinator"] / "startup/fed_admin.json"
    username = json.loads(admin.read_text())["admin"]["username"]
    project.add_participant(Participant("admin", username, "charity", {"role": "lead"}))
    builders = [
        WorkspaceBuilder(["master_template.yml"]),
        StaticFileBuilder("config", SCHEME, require_signed_jobs=True),
    ]
    context = Provisioner(str(tmp_path), builders).provision(project)
    assert not context.get("build_error")
    (theirs,) = (tmp_path / "clinics").glob("prod_*")
    for ours, other, name in (
        ("north", "north", "startup/fed_client.json"),
        ("server", IDENTITY, "startup/fed_server.json"),
        ("coordinator", username, "startup/fed_admin.json"),
    ):
        assert json.loads((made[0][ours] / name).read_text()) == json.loads(
            (theirs / other / name).read_text()
        )


@pytest.mark.parametrize(
    ("name", "change_to", "problem"),
    [
        (
            "local/authorization.json",
            ("permissions", "lead", "byoc", "any"),
            "lead.byoc' is 'any', it must be 'none'",
        ),
        (
            "local/authorization.json",
            ("permissions", "project_admin", "any"),
            "'permissions.project_admin' is 'any'",
        ),
        (
            "local/authorization.json",
            ("permissions", "super", {}),
            "'permissions.super' does not belong there",
        ),
        ("local/resources.json", ("class_allow_list", ["*"]), "class_allow_list' is ['*'], it must be"),
        ("local/resources.json", ("class_list_enforcement_mode", "warn"), "is 'warn', it must be 'enforce'"),
        (
            "local/resources.json",
            ("allow_log_streaming", True),
            "allow_log_streaming' is True, it must be False",
        ),
        ("local/resources.json", ("components", []), "'components' is [], it must be"),
        ("local/comm_config.json", ("streaming_max_blob_size", 2**40), "streaming_max_blob_size' is"),
        ("local/log_config.json", ("formatters", "base", "()", "os.system"), "is 'os.system', it must be"),
        ("startup/fed_client.json", ("require_signed_jobs", False), "'require_signed_jobs' is False"),
        (
            "startup/fed_client.json",
            ("client", "connection_security", "clear"),
            "is 'clear', it must be 'mtls'",
        ),
        ("startup/fed_client.json", ("format_version", 2.0), "'format_version' is 2.0, it must be 2"),
    ],
)
def test_a_loosened_setting_is_named(kit, name, change_to, problem):
    change(kit, name, *change_to)
    (found,) = check_kit(kit)
    assert found.startswith(f"{name}: ")
    assert problem in found


@pytest.mark.parametrize(
    "name",
    [
        "local/custom/sitecustomize.py",
        "local/x__resources.json",
        "startup/x__p_resources.json",
        "local/privacy.json",
    ],
)
def test_a_file_that_nvflare_would_read_too_is_named(kit, name):
    (kit / name).parent.mkdir(exist_ok=True)
    (kit / name).write_text("{}")
    assert f"{name}: it is not part of a kit, so remove it" in check_kit(kit)


def test_what_a_running_node_leaves_behind_is_no_problem(kit):
    (kit / "log.txt").write_text("")
    (kit / "4be0643f-1d98-573b-97cd-ca98a65347dd").mkdir()
    assert check_kit(kit) == []


def test_all_problems_are_named_at_once(kit):
    (kit / "startup/client.key").chmod(0o644)
    (kit / "local").chmod(0o777)
    (kit / "local/resources.json").write_text("no JSON")
    (kit / "local/authorization.json").unlink()
    shutil.move(kit / "local/log_config.json", kit / "log_config.json")
    (kit / "local/log_config.json").symlink_to(kit / "log_config.json")
    assert check_kit(kit, "banks", "server") == [
        "coterie.json: the kit is for the federation 'clinics', not 'banks'",
        "coterie.json: this is the kit of a silo, not of a server",
        "local/resources.json: it is no JSON",
        "local/authorization.json: no such file or directory",
        "startup/client.key: others can read the private key (mode 644), so run: chmod 600 startup/client.key",
        "local: others can change it (mode 777)",
        "local/log_config.json: it is a link, and a kit holds only files",
    ]


def test_certificates_have_a_time(made):
    kit = made[0]["north"]
    party, now = read_party(kit), datetime.now(UTC)
    assert list(certificate_problems(party, kit, now + timedelta(days=29))) == []
    early = list(certificate_problems(party, kit, now - timedelta(days=1)))
    assert [problem.split(":")[0] for problem in early] == ["startup/rootCA.pem", "startup/client.crt"]
    assert all("is valid from" in problem for problem in early)
    late = list(certificate_problems(party, kit, now + timedelta(days=31)))
    assert all("expired on" in problem for problem in late)
    assert len(late) == 2


def copy(source, kit, *names):
    for name in names:
        shutil.copy(source / "startup" / name, kit / "startup" / name)


def test_a_foreign_authority_is_named(made, kit):
    copy(made[1]["north"], kit, "rootCA.pem")
    assert check_kit(kit) == [
        "startup/rootCA.pem: it is the certificate of another federation than 'clinics'",
        "startup/client.crt: it was not issued by startup/rootCA.pem",
    ]
    copy(made[1]["north"], kit, "client.crt", "client.key")
    assert check_kit(kit) == [
        "startup/rootCA.pem: it is the certificate of another federation than 'clinics'"
    ]


def test_another_silos_certificate_is_named(made, kit):
    copy(made[0]["south"], kit, "client.crt")
    assert check_kit(kit) == [
        "startup/client.crt: it names south, not north",
        "startup/client.key: it is not the key of startup/client.crt",
    ]


@pytest.mark.parametrize(
    ("name", "content"), [("client.crt", b"nothing"), ("client.key", b""), ("rootCA.pem", None)]
)
def test_a_certificate_that_cannot_be_read_is_named(kit, name, content):
    path = kit / "startup" / name
    if content is None:
        path.unlink()
        assert check_kit(kit) == [f"startup/{name}: no such file or directory"]
    else:
        path.write_bytes(content)
        (problem,) = check_kit(kit)
        assert problem.startswith("startup: a certificate or the private key cannot be read: ")


@pytest.mark.parametrize("content", [None, "x", "[]", "{}", '{"federation": "clinics"}'])
def test_a_folder_that_is_no_kit_is_named(kit, content):
    (kit / "coterie.json").unlink()
    if content is not None:
        (kit / "coterie.json").write_text(content)
    (problem,) = check_kit(kit)
    assert problem.startswith(f"'{kit}' is no kit: coterie.json: ")


def test_a_servers_kit_may_be_moved_but_not_changed(made, tmp_path):
    kit = shutil.copytree(made[0]["server"], tmp_path / "elsewhere")
    assert len(check_kit(kit)) == 2  # its settings name the old folder twice
    follow_move(kit)
    assert check_kit(kit) == []
    change(kit, "local/resources.json", "class_allow_list", ["*"])
    moved = kit.rename(tmp_path / "again")
    follow_move(moved)
    assert any("class_allow_list" in problem for problem in check_kit(moved))


def test_a_silo_can_be_added_later(tmp_path):
    first = make_kits(Record("clinics", "localhost", 8002, ("north",)), tmp_path)
    key = (first["north"] / "startup/client.key").read_bytes()
    for name in ("server", "coordinator"):
        shutil.rmtree(first[name])
    second = make_kits(Record("clinics", "localhost", 8002, ("north", "south")), tmp_path)
    assert (second["north"] / "startup/client.key").read_bytes() == key
    assert [problem for kit in second.values() for problem in check_kit(kit, "clinics")] == []
    assert read_party(second["coordinator"]).silos == ("north", "south")


def test_a_record_says_all_that_is_wrong_with_it():
    with pytest.raises(Problem) as problem:
        Record("my clinics", "host name", 0, ("north", "north", "server", "ö"), "a b", 361)
    for words in (
        "federation 'my clinics': a name has",
        "silo 'ö': a name has",
        "silo 'server': that name is taken",
        "none twice",
        "host: expected a name or an IPv4 address, got 'host name'",
        "port: expected 1 to 65535, got 0",
        "organisation 'a b'",
        "days: expected 1 to 360, got 361",
    ):
        assert words in str(problem.value)
    with pytest.raises(Problem, match="name at least one"):
        Record("clinics", "localhost", 1, ())
