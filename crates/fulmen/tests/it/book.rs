//! Checks the book against the code: its table of options, environment variables, chapters and
//! links.
//!
//! Out of scope: the programs in the chapters, which are doc tests of the package `book`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use fulmen::trainer::Options;

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn chapters() -> PathBuf {
    repository().join("docs/src")
}

pub(crate) fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The first example in a Markdown text.
pub(crate) fn first_example(text: &str) -> &str {
    let example = text.split_once("```rust").and_then(|(_, rest)| rest.split_once("```"));
    let (example, _) = example.unwrap_or_else(|| panic!("no example in Rust"));
    // Without what follows the language, such as `,no_run`.
    example.split_once('\n').unwrap_or_default().1
}

#[test]
fn both_readmes_begin_with_the_same_example() {
    let [crate_readme, readme] =
        ["crates/fulmen/README.md", "README.md"].map(|path| read(repository().join(path)));
    assert_eq!(first_example(&crate_readme), first_example(&readme));
}

/// The targets of the links in a Markdown text.
fn links(text: &str) -> Vec<&str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect()
}

/// The table of options, generated from the code.
fn table_of_options() -> String {
    let mut table =
        "| option | environment | default | what it does |\n| --- | --- | --- | --- |\n".to_owned();
    for row in Options::table() {
        table += &format!("| `{}` | `{}` | `{}` | {} |\n", row.name, row.env, row.default, row.doc);
    }
    table
}

#[test]
fn the_table_of_options_matches_the_code() {
    let path = chapters().join("options.md");
    let chapter = read(&path);
    let lines: Vec<&str> = chapter.split_inclusive('\n').collect();
    let is_row = |line: &&str| line.starts_with('|');
    let Some(start) = lines.iter().position(|line| line.starts_with("| option |")) else {
        panic!("the chapter has no table that begins with `| option |`");
    };
    let rows = lines[start..].iter().take_while(|line| is_row(line)).count();
    let table = lines[start..start + rows].concat();
    let expected = table_of_options();
    if table == expected {
        return;
    }
    assert_eq!(
        std::env::var("UPDATE_EXPECT").as_deref(),
        Ok("1"),
        "the table does not match the code; UPDATE_EXPECT=1 updates it. Expected:\n{expected}\nfound:\n{table}"
    );
    let updated = [&lines[..start].concat(), &expected, &lines[start + rows..].concat()]
        .map(String::as_str)
        .concat();
    fs::write(&path, updated).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// The files of the chapters, without other files in the folder.
fn chapter_files() -> Vec<PathBuf> {
    let entries = fs::read_dir(chapters()).expect("the chapters' folder");
    let paths = entries.map(|entry| entry.expect("a chapter").path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

#[test]
fn every_chapter_is_listed_and_its_programs_are_tested() {
    let summary = read(chapters().join("SUMMARY.md"));
    let listed: BTreeSet<String> = links(&summary).into_iter().map(str::to_owned).collect();
    let names = chapter_files()
        .into_iter()
        .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let existing: BTreeSet<String> = names.filter(|name| name != "SUMMARY.md").collect();
    assert_eq!(listed, existing);
    let library = read(repository().join("docs/lib.rs"));
    for name in existing {
        let include = format!("include_str!(\"src/{name}\")");
        assert!(library.contains(&include), "docs/lib.rs lacks {include}");
    }
}

/// The anchor that mdbook gives a heading.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    heading
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// Collects the Markdown files under a folder, except in build folders.
fn markdown_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
    {
        let path = entry.expect("a file").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && name != "target" && name != "runs" {
            markdown_files(&path, files);
        } else if name.ends_with(".md") {
            files.push(path);
        }
    }
}

#[test]
fn links_in_markdown_have_targets() {
    let mut files = Vec::new();
    markdown_files(&repository(), &mut files);
    let mut checked = 0;
    for path in files {
        let folder = path.parent().expect("a folder");
        // `ci/book` checks the chapters' links to the API docs, which exist only in the built
        // book.
        let is_elsewhere = |link: &&str| {
            link.contains("://") || (folder == chapters() && link.starts_with("api/"))
        };
        for link in links(&read(&path)).into_iter().filter(|link| !is_elsewhere(link)) {
            let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { folder.join(file) };
            assert!(target.exists(), "{}: the target of {link} does not exist", path.display());
            let has_heading = fragment.is_empty()
                || read(&target)
                    .lines()
                    .any(|line| line.starts_with('#') && anchor(line) == fragment);
            assert!(has_heading, "{}: {link} names a heading that does not exist", path.display());
            checked += 1;
        }
    }
    assert!(checked > 100, "only {checked} links were found");
}

#[test]
fn each_chapter_ends_with_a_link_to_the_next() {
    let summary = read(chapters().join("SUMMARY.md"));
    let files = links(&summary);
    for pair in files.windows(2) {
        let chapter = read(chapters().join(pair[0]));
        let last = chapter.trim_end().lines().last().unwrap_or_default();
        let is_next = last.starts_with("Next: [") && links(last) == pair[1..];
        assert!(is_next, "{} ends with `{last}`, not with `Next: […]({})`", pair[0], pair[1]);
    }
}

/// Collects the quoted names that begin with `FULMEN_` in the sources of a folder, without tests.
/// Tests pass `FULMEN_TEST_…` to their own processes.
fn variables(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
    {
        let path = entry.expect("a source file").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            variables(&path, names);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            let source = read(&path);
            let code = source.split("#[cfg(test)]").next().unwrap_or_default();
            for rest in code.split("\"FULMEN_").skip(1) {
                let end =
                    rest.find(|c: char| !c.is_ascii_uppercase() && c != '_').unwrap_or(rest.len());
                // The prefix alone is not a variable.
                if end > 0 && !rest.starts_with("TEST_") {
                    names.insert(format!("FULMEN_{}", &rest[..end]));
                }
            }
        }
    }
}

#[test]
fn the_book_documents_every_variable() {
    let mut names = BTreeSet::new();
    for krate in fs::read_dir(repository().join("crates")).expect("the crates' folder") {
        variables(&krate.expect("a crate").path().join("src"), &mut names);
    }
    variables(&repository().join("bench/src"), &mut names);
    assert!(
        names.contains("FULMEN_PJRT_PLUGIN") && names.contains("FULMEN_MAX_EPOCHS"),
        "{names:?}"
    );
    let names_of_chapters = [
        "options.md",
        "devices.md",
        "many-hosts.md",
        "rehearse-a-pod.md",
        "performance.md",
        "files.md",
    ];
    let book = names_of_chapters.map(|name| read(chapters().join(name))).concat();
    for name in names {
        assert!(book.contains(&format!("`{name}`")), "no chapter documents {name}");
    }
}

/// Users search the book for names that guides of earlier years use. Each is in the first column of a table whose
/// second column answers.
#[test]
fn names_from_older_guides_have_an_answer() {
    let names = [
        "capture_tpu_profile",
        "--monitoring_level",
        "--num_queries",
        "ctpu status",
        "xla_dist",
        "on_post_move_to_device",
        "xrt_world_size",
        "get_ordinal",
        "ParallelLoader",
        "XRT_TPU_CONFIG",
        "TPU_IP_ADDRESS",
        "CachedDataset",
        "DataParallel",
        "to(\"cuda\")",
        "optimizer.step()",
    ];
    let text: String = chapter_files().into_iter().map(read).collect();
    for name in names {
        let answer = text.lines().filter(|line| line.starts_with('|')).find_map(|line| {
            let mut cells = line.trim_matches('|').split(" | ");
            let is_named = cells.next().is_some_and(|cell| cell.contains(name));
            cells.next().filter(|answer| is_named && !answer.trim().is_empty())
        });
        assert!(answer.is_some(), "no table of the book answers `{name}`");
    }
}

/// The quoted names in a cell of a table.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// What is not as it should be with the rows of the chapter about libtpu: each names the file that
/// does what is expected, and the tests that show it, or says that there are none.
fn wrong_expectations(chapter: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let rows = chapter.lines().filter(|line| line.starts_with("| "));
    for row in
        rows.filter(|row| !row.starts_with("| what is expected") && !row.starts_with("| ---"))
    {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [expectation, ours, shown, source] = cells[..] else {
            wrong.push(format!("{row}: expected four cells"));
            continue;
        };
        let files = |cell| quoted(cell).filter(|name| name.contains('/'));
        for file in files(ours).chain(files(shown)) {
            if !repository().join(file).is_file() {
                wrong.push(format!("{expectation}: {file} does not exist"));
            }
        }
        let sources: String = files(shown)
            .filter_map(|file| fs::read_to_string(repository().join(file)).ok())
            .collect();
        let tests: Vec<&str> = quoted(shown).filter(|name| !name.contains('/')).collect();
        for test in &tests {
            let is_test = sources.split("#[test]").skip(1).any(|rest| {
                let line = rest.lines().find(|line| line.contains("fn ")).unwrap_or_default();
                line.trim().starts_with(&format!("fn {test}("))
            });
            if !is_test {
                wrong.push(format!("{expectation}: {shown} has no test {test}"));
            }
        }
        if tests.is_empty() && !shown.starts_with("none") || source.is_empty() {
            wrong.push(format!("{expectation}: expected tests or `none`, and a source"));
        }
    }
    wrong
}

#[test]
fn what_libtpu_expects_names_files_and_tests_that_exist() {
    let chapter = read(chapters().join("libtpu.md"));
    assert!(chapter.matches("\n| ").count() > 50, "the chapter has no tables");
    assert_eq!(wrong_expectations(&chapter), [""; 0]);
    let test = "`libtpu_has_a_profiler` in `crates/pjrt/tests/it/plugin.rs`";
    for (row, message) in [
        (format!("| a | `crates/no.rs` | {test} | b |"), "a: crates/no.rs does not exist"),
        (
            "| a | b | `plugin` in `crates/pjrt/tests/it/plugin.rs` | c |".into(),
            "has no test plugin",
        ),
        (format!("| a | b | {test} |"), "expected four cells"),
        ("| a | b | it works | c |".into(), "expected tests or `none`"),
    ] {
        let wrong = wrong_expectations(&row);
        assert!(wrong.len() == 1 && wrong[0].contains(message), "{row}: {wrong:?}");
    }
}
