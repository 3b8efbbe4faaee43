"""Results for people: tables, pictures, folders."""
