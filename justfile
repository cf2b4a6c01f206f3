# Short names for the scripts in `ci`. Nothing needs `just`: each recipe is one command.

# What to run before a commit.
fast:
    ci/fast

# All tests, as in the README.
test *arguments:
    cargo test {{ arguments }}

# Everything that a change must pass, which takes an hour or more.
all:
    .ci/run

# The book with the API docs, in docs/book.
book:
    ci/book

# Rewrites the generated files: tables and drawings of the book, and the snapshots of the tests.
update *arguments:
    UPDATE_EXPECT=1 cargo test {{ arguments }}

# One benchmark: just bench steps --workloads W1 --peers jax
bench *arguments:
    cargo run --release -p bench --features jemalloc -- {{ arguments }}
