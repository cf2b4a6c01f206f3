//! Text files.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use flate2::Compression;
use flate2::write::GzEncoder;
use fulmen_cli::pack::Pack;
use fulmen_text::{TokenFile, TokenStore, Tokenizer};

use crate::pack::archives::{contents, entries};
use crate::pack::resume::Notes;
use crate::pack::{kill_in_the_middle, program};

/// A tokenizer of words: `w0` is token 1, and so on.
fn tokenizer_json() -> String {
    let words: Vec<String> = (0..100).map(|word| format!("\"w{word}\": {}", word + 1)).collect();
    format!(
        r#"{{"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "decoder": null,
            "added_tokens": [{{"id": 0, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
                               "normalized": false, "special": true}}],
            "pre_tokenizer": {{"type": "Whitespace"}}, "post_processor": null,
            "model": {{"type": "WordLevel", "vocab": {{"<end>": 0, {}}}, "unk_token": "<end>"}}}}"#,
        words.join(",")
    )
}

fn document(index: usize) -> String {
    (0..index % 7 + 1)
        .map(|word| format!("w{}", (index * 13 + word) % 100))
        .collect::<Vec<_>>()
        .join(" ")
}

fn tokens(index: usize) -> Vec<u32> {
    (0..index % 7 + 1).map(|word| ((index * 13 + word) % 100 + 1) as u32).collect()
}

fn json_lines(documents: std::ops::Range<usize>) -> String {
    documents
        .map(|index| format!("{{\"id\": {index}, \"text\": \"{}\"}}\n", document(index)))
        .collect()
}

fn pack(input: &Path, output: &Path) -> Pack {
    Pack::new(output).source("train", input).threads(2)
}

#[test]
fn texts_of_all_kinds_become_documents_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("input");
    fs::create_dir(&input).unwrap();
    fs::write(input.join("a.txt"), "one\ntwo").unwrap();
    fs::write(
        input.join("b.jsonl"),
        "{\"text\": \"three\"}\n\n{\"text\": \" \"}\n{\"n\": 1, \"text\": \"four\"}",
    )
    .unwrap();
    let mut gzip =
        GzEncoder::new(File::create(input.join("c.jsonl.gz")).unwrap(), Compression::default());
    gzip.write_all(b"{\"text\": \"five\"}\n").unwrap();
    gzip.finish().unwrap();
    let columns: [(&str, ArrayRef); 2] = [
        ("number", Arc::new(Int64Array::from(vec![1, 2]))),
        ("text", Arc::new(StringArray::from(vec!["six", "seven"]))),
    ];
    let rows = RecordBatch::try_from_iter(columns).unwrap();
    let file = File::create(input.join("d.parquet")).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, rows.schema(), None).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();
    fs::write(input.join("readme.md"), "not a text").unwrap();

    let texts = |output: &Path, lines: bool| -> Vec<String> {
        let manifest = pack(&input, output).max_samples(3).lines(lines).run(&()).unwrap();
        assert_eq!(manifest.warnings[0].what, "1 document with only whitespace was left out");
        assert_eq!(
            manifest.sources.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(),
            ["a.txt", "b.jsonl", "c.jsonl.gz", "d.parquet"]
        );
        let shards = manifest.splits.iter().flat_map(|split| &split.shards);
        let files = shards.flat_map(|shard| entries(&output.join(&shard.name)));
        files.map(|(_, text)| String::from_utf8(text).unwrap()).collect()
    };
    let whole = folder.path().join("whole");
    let lines = folder.path().join("lines");
    assert_eq!(texts(&whole, false), ["one\ntwo", "three", "four", "five", "six", "seven"]);
    assert_eq!(texts(&lines, true).len(), 7);
    let keys: Vec<String> =
        entries(&whole.join("train-000001.tar")).into_iter().map(|(name, _)| name).collect();
    assert_eq!(keys, ["000000000003.txt", "000000000004.txt", "000000000005.txt"]);
}

#[test]
fn tokens_are_in_order_and_each_text_is_always_on_the_same_side() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("input.jsonl");
    fs::write(&input, json_lines(0..300)).unwrap();
    let tokenizer = Tokenizer::from_bytes(tokenizer_json().as_bytes()).unwrap();
    let run = |name: &str, threads: usize, max_bytes: u64| {
        let output = folder.path().join(name);
        let pack = pack(&input, &output).max_bytes(max_bytes).threads(threads);
        let pack = pack.tokenizer(tokenizer.clone()).separator("<end>").validation(0.2);
        (pack.run(&()).unwrap(), output)
    };
    let (manifest, output) = run("one", 1, 4096 + 400);
    let documents: Vec<Vec<Vec<u32>>> = manifest
        .splits
        .iter()
        .map(|split| {
            let mut documents = Vec::new();
            for shard in &split.shards {
                let file = TokenFile::open(output.join(&shard.name)).unwrap();
                assert_eq!(Some(file.num_tokens()), shard.tokens);
                assert_eq!(file.document_ends().len() as u64, shard.samples);
                assert!(shard.bytes <= 4096 + 400);
                let mut start = 0;
                for &end in file.document_ends() {
                    let mut tokens = vec![0; (end - start) as usize];
                    file.read(start, &mut tokens).unwrap();
                    assert_eq!(tokens.pop(), Some(0));
                    documents.push(tokens);
                    start = end;
                }
            }
            assert_eq!(split.samples, documents.len() as u64);
            documents
        })
        .collect();
    assert!(manifest.splits[0].shards.len() > 5);
    let validation: BTreeSet<&Vec<u32>> = documents[1].iter().collect();
    assert!((30..90).contains(&documents[1].len()), "{}", documents[1].len());
    let all: Vec<Vec<u32>> = (0..300).map(tokens).collect();
    let train: Vec<&Vec<u32>> =
        all.iter().filter(|document| !validation.contains(document)).collect();
    assert_eq!(documents[0].iter().collect::<Vec<_>>(), train);

    let (_, many) = run("many", 4, 4096 + 400);
    assert_eq!(contents(&many), contents(&output));
}

#[test]
fn an_interrupted_run_over_texts_continues() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("input.jsonl");
    fs::write(&input, json_lines(0..60)).unwrap();
    let output = folder.path().join("shards");
    let tokenizer = Tokenizer::from_bytes(tokenizer_json().as_bytes()).unwrap();
    let run = || {
        let notes = Notes::default();
        let pack = pack(&input, &output).max_samples(7).tokenizer(tokenizer.clone());
        let result = pack.validation(0.3).run(&notes);
        result.map(|_| notes.0.into_inner().unwrap())
    };
    let all = run().unwrap();
    let whole = contents(&output);
    assert_eq!(all.len() + 1, whole.len());
    assert_eq!(run().unwrap(), [""; 0]);
    // The first shard and one in the middle are missing, and a third one is damaged.
    fs::remove_file(output.join("train-000000.tokens")).unwrap();
    fs::remove_file(output.join("train-000003.tokens")).unwrap();
    let mut damaged = whole["validation-000001.tokens"].clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(output.join("validation-000001.tokens"), damaged).unwrap();
    let notes = run().unwrap();
    let written: BTreeSet<&str> =
        notes.iter().filter_map(|note| note.split_once(':').map(|(name, _)| name)).collect();
    assert_eq!(
        written.into_iter().collect::<Vec<_>>(),
        ["train-000000.tokens", "train-000003.tokens", "validation-000001.tokens"]
    );
    assert_eq!(contents(&output), whole);
    // Other files make another plan.
    fs::write(&input, json_lines(0..61)).unwrap();
    let error = run().unwrap_err();
    assert!(
        error.is_usage() && error.to_string().contains("the source input.jsonl was"),
        "{error}"
    );
}

#[test]
fn documents_without_a_token_are_counted_separately_and_skipped_on_resume() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("input.jsonl");
    let line = |index: usize| match index % 3 {
        0 => "{\"text\": \"--\"}\n".to_owned(),
        _ => json_lines(index..index + 1),
    };
    fs::write(&input, (0..60).map(line).collect::<String>()).unwrap();
    let output = folder.path().join("shards");
    let normalizer =
        r#""normalizer": {"type": "Replace", "pattern": {"String": "-"}, "content": ""}"#;
    let json = tokenizer_json().replace(r#""normalizer": null"#, normalizer);
    let tokenizer = Tokenizer::from_bytes(json.as_bytes()).unwrap();
    let run =
        || pack(&input, &output).max_samples(7).tokenizer(tokenizer.clone()).run(&()).unwrap();
    let manifest = run();
    assert_eq!(manifest.splits[0].samples, 40);
    for shard in &manifest.splits[0].shards {
        let file = TokenFile::open(output.join(&shard.name)).unwrap();
        assert_eq!(file.document_ends().len() as u64, shard.samples);
    }
    assert_eq!(manifest.warnings.len(), 1);
    assert_eq!(manifest.warnings[0].what, "20 documents without a token were left out");
    let whole = contents(&output);
    fs::remove_file(output.join("train-000003.tokens")).unwrap();
    assert_eq!(run(), manifest);
    assert_eq!(contents(&output), whole);
}

#[test]
fn a_killed_run_over_texts_continues_with_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("input.jsonl");
    fs::write(&input, json_lines(0..240)).unwrap();
    let tokenizer = folder.path().join("tokenizer.json");
    fs::write(&tokenizer, tokenizer_json()).unwrap();
    let command = |output: &Path| {
        let mut command = program();
        command.args(["data", "pack"]).arg(&input).arg("--to").arg(output);
        command.arg("--tokenizer").arg(&tokenizer).args([
            "--separator",
            "<end>",
            "--validation",
            "0.1",
        ]);
        command.args(["--max-samples", "2"]).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let undisturbed = folder.path().join("undisturbed");
    assert!(command(&undisturbed).status().unwrap().success());
    let killed = folder.path().join("killed");
    let before = kill_in_the_middle(command(&killed), &killed, "train-000010.tokens", 110);
    assert!(before >= 11, "{before}");
    assert!(command(&killed).status().unwrap().success());
    assert_eq!(contents(&killed), contents(&undisturbed));
}

#[test]
fn a_folder_with_a_tokenizer_does_what_its_file_does() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("input.jsonl");
    fs::write(&input, json_lines(0..20)).unwrap();
    let model = folder.path().join("model");
    fs::create_dir(&model).unwrap();
    fs::write(model.join("tokenizer.json"), tokenizer_json()).unwrap();
    let run = |tokenizer: &Path, output: &str| {
        let output = folder.path().join(output);
        let mut command = program();
        command.args(["data", "pack"]).arg(&input).arg("--to").arg(&output);
        command.arg("--tokenizer").arg(tokenizer).stdout(Stdio::null());
        assert!(command.status().unwrap().success());
        contents(&output)
    };
    assert_eq!(run(&model, "of_folder"), run(&model.join("tokenizer.json"), "of_file"));
}

#[test]
fn errors_in_texts_have_positions() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("shards");
    let check = |name: &str, bytes: &[u8], says: &[&str]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        let error = pack(&path, &output).run(&()).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
        says.iter().for_each(|part| assert!(error.contains(part), "{error}"));
        fs::remove_dir_all(&output).unwrap_or_default();
    };
    let wrong = b"{\"text\": \"x\"}\n{\"body\": \"y\"}\n";
    check("a.jsonl", wrong, &["line 2", "no field \"text\"", "body"]);
    check("a.jsonl", b"{\"text\": 7}\n", &["line 1", "is not text"]);
    check("a.jsonl", b"{\"text\": \n", &["line 1", "not JSON"]);
    check("a.txt", b"\xff\xfe", &["UTF-8"]);
    check("a.doc", b"", &["has no known extension", ".jsonl"]);
    check("a.txt.gz", b"", &["only be read by lines"]);
    check("a.parquet", b"PAR1", &[]);
    let file = folder.path().join("b.jsonl");
    fs::write(&file, "{\"text\": \" \"}\n").unwrap();
    let run = |change: fn(Pack) -> Pack| change(pack(&file, &output)).run(&()).unwrap_err();
    assert!(run(|pack| pack).to_string().contains("the sources have no documents"));
    assert!(run(|pack| pack.validation(1.0)).is_usage());
    assert!(run(|pack| pack.separator("<end>")).is_usage());
    let both = run(|pack| pack.validation(0.1).source("validation", "c.jsonl")).to_string();
    assert!(both.contains("the split validation has sources"), "{both}");
    let tokenizer = Tokenizer::from_bytes(tokenizer_json().as_bytes()).unwrap();
    let error = pack(&file, &output).tokenizer(tokenizer).separator("</s>").run(&()).unwrap_err();
    assert!(error.to_string().contains("no token \"</s>\""), "{error}");
}

#[test]
fn splits_of_texts_have_their_own_sources() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.jsonl"), json_lines(0..5)).unwrap();
    fs::write(folder.path().join("b.jsonl"), json_lines(5..9)).unwrap();
    let mut command = program();
    command.args(["data", "pack", "a.jsonl", "test=b.jsonl", "--to", "shards"]);
    assert!(command.current_dir(folder.path()).status().unwrap().success());
    let documents = |shard: &str| -> Vec<String> {
        let files = entries(&folder.path().join("shards").join(shard));
        files.into_iter().map(|(_, text)| String::from_utf8(text).unwrap()).collect()
    };
    assert_eq!(documents("train-000000.tar"), (0..5).map(document).collect::<Vec<_>>());
    assert_eq!(documents("test-000000.tar"), (5..9).map(document).collect::<Vec<_>>());
}
