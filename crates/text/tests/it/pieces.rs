//! SentencePiece models and tiktoken's ranks, compared with `sentencepiece`, `tiktoken` and
//! `transformers` (`reference/pieces.py`).

use std::io::Read;
use std::path::{Path, PathBuf};

use fulmen_data::Error;
use fulmen_text::{Encoding, TextInput, Tiktoken, Tokenizer};
use serde_json::Value;

const MODELS: [&str; 5] = ["unigram", "bpe", "no_prefix", "rules", "unused"];

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/reference/pieces").join(name)
}

fn json(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(path(name)).unwrap()).unwrap()
}

fn array(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// The bytes of a stored model.
fn model(name: &str) -> Vec<u8> {
    let packed = std::fs::File::open(path(&format!("{name}.model.gz"))).unwrap();
    let mut bytes = Vec::new();
    fulmen_files::gunzip(packed).read_to_end(&mut bytes).unwrap();
    bytes
}

/// A folder with files.
fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let file = folder.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    }
    folder
}

/// Loads a SentencePiece model without anything else.
fn load(bytes: &[u8]) -> fulmen_data::Result<Tokenizer> {
    let folder = folder(&[("some.model", bytes)]);
    Tokenizer::from_file(folder.path().join("some.model"))
}

fn load_with(name: &str, config: &str) -> fulmen_data::Result<Tokenizer> {
    let folder =
        folder(&[("tokenizer.model", &model(name)), ("tokenizer_config.json", config.as_bytes())]);
    Tokenizer::load(folder.path())
}

fn message(result: fulmen_data::Result<Tokenizer>) -> String {
    let error: Error = result.map(|_| ()).unwrap_err();
    error.to_string()
}

/// Whether the model removes extra spaces.
fn removes_spaces(name: &str) -> bool {
    matches!(name, "unigram" | "rules" | "unused")
}

#[track_caller]
fn check_cases(tokenizer: &Tokenizer, name: &str, cases: &Value) {
    for case in array(cases) {
        let text = case["text"].as_str().unwrap();
        let encoding = tokenizer.encode(text).unwrap();
        assert_eq!(encoding.ids, ids(&case["ids"]), "{name}: {text:?}");
        let special = tokenizer.special_ids();
        if !encoding.ids.iter().any(|id| special.contains(id)) {
            let decoded = case["decoded"].as_str().unwrap_or(text);
            let mut own = tokenizer.decode(&encoding.ids, true).unwrap();
            if removes_spaces(name) {
                own = own.trim_start_matches(' ').to_owned();
            }
            assert_eq!(own, decoded, "{name}: {text:?}");
        }
    }
}

#[test]
fn ids_are_those_of_sentencepiece() {
    let expected = json("pieces.json");
    for name in MODELS {
        check_cases(&load(&model(name)).unwrap(), name, &expected[name]);
    }
}

#[test]
#[ignore = "needs random cases: python crates/text/tests/reference/pieces.py random 1 20000 /tmp/cases.json; \
            PIECES=/tmp/cases.json cargo test -p fulmen-text --test it random_texts -- --ignored"]
fn random_texts_have_the_ids_of_sentencepiece() {
    let file = std::env::var_os("PIECES").expect("PIECES names the file of cases");
    let expected: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    for name in MODELS {
        check_cases(&load(&model(name)).unwrap(), name, &expected[name]);
    }
}

#[test]
fn words_and_places_do_not_change_the_tokens() {
    let expected = json("pieces.json");
    for name in MODELS {
        let fast = load(&model(name)).unwrap();
        let worded = fast.clone().words(true);
        for case in array(&expected[name]) {
            let text = case["text"].as_str().unwrap();
            let encoding = worded.encode(text).unwrap();
            assert_eq!(encoding.words.len(), encoding.ids.len(), "{name}: {text:?}");
            let plain = Encoding { words: Vec::new(), ..encoding };
            assert_eq!(plain, fast.encode(text).unwrap(), "{name}: {text:?}");
        }
        let encoding = worded.encode("thunder rolls and rolls").unwrap();
        let mut words = encoding.words.clone();
        words.dedup();
        assert_eq!(words, [0, 1, 2, 3].map(Some), "{name}");
    }
}

/// What stands between special tokens is encoded by itself, with pairs, and truncated.
#[test]
fn folders_are_read_as_transformers_reads_them() {
    for case in array(&json("folders.json")) {
        let config = case["config"].to_string();
        let file = case["file"].as_str().unwrap();
        let files = folder(&[
            (file, &model(case["model"].as_str().unwrap())),
            ("tokenizer_config.json", config.as_bytes()),
        ]);
        let tokenizer = Tokenizer::load(files.path()).unwrap();
        assert_eq!(tokenizer.vocab_size() as u64, case["count"].as_u64().unwrap(), "{config}");
        for case in array(&case["texts"]) {
            let text = case["text"].as_str().unwrap();
            let encoding = tokenizer.encode(text).unwrap();
            assert_eq!(encoding.ids, ids(&case["ids"]), "{config}: {text:?}");
        }
        for case in array(&case["pairs"]) {
            let pair: Vec<&str> =
                array(&case["pair"]).iter().map(|text| text.as_str().unwrap()).collect();
            let encoding = tokenizer.encode_pair(pair[0], pair[1]).unwrap();
            assert_eq!(encoding.ids, ids(&case["ids"]), "{config}: {pair:?}");
            let mut types = encoding.type_ids.clone();
            types.resize(encoding.ids.len(), 0);
            assert_eq!(types, ids(&case["types"]), "{config}: {pair:?}");
        }
    }
}

/// Except for the texts that `Tokenizer::load` names, and unused pieces.
#[test]
fn a_saved_tokenizer_has_the_same_tokens() {
    let expected = json("pieces.json");
    let exceptions = [("unigram", 3), ("bpe", 0), ("no_prefix", 2), ("rules", 28), ("unused", 8)];
    for (name, exceptions) in exceptions {
        let tokenizer = load(&model(name)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        tokenizer.save(folder.path().join("tokenizer.json")).unwrap();
        let saved = Tokenizer::load(folder.path()).unwrap();
        assert_eq!(saved.vocab_size(), tokenizer.vocab_size());
        assert_eq!(saved.special_ids(), tokenizer.special_ids());
        let differs =
            |text: &&str| saved.encode(text).unwrap().ids != tokenizer.encode(text).unwrap().ids;
        let texts = array(&expected[name]).iter().map(|case| case["text"].as_str().unwrap());
        let different: Vec<&str> = texts.filter(differs).collect();
        assert!(different.len() <= exceptions, "{name}: {} {different:?}", different.len());
    }
}

#[test]
fn a_sentencepiece_tokenizer_does_what_others_do() {
    let config = r#"{"tokenizer_class": "LlamaTokenizerFast", "add_eos_token": true}"#;
    let tokenizer = load_with("bpe", config).unwrap();
    let [bos, eos] = ["<s>", "</s>"].map(|token| tokenizer.special_id(token).unwrap());
    assert_eq!(tokenizer.special_ids(), [0, bos, eos]);
    let text = "the rain brings mud";
    let all = tokenizer.encode(text).unwrap();
    assert_eq!((all.ids[0], all.ids.last()), (bos, Some(&eos)));
    let short = tokenizer.clone().max_length(5).unwrap().encode(text).unwrap();
    assert_eq!(short.ids[..4], all.ids[..4]);
    assert_eq!((short.ids.len(), short.ids[4]), (5, eos));
    let plain = tokenizer.clone().special_tokens(false).encode(text).unwrap();
    assert_eq!(plain.ids, all.ids[1..all.ids.len() - 1]);
    let bytes = tokenizer.token_bytes().unwrap();
    let joined: Vec<u8> =
        plain.ids.iter().flat_map(|&id| bytes[id as usize].clone().unwrap()).collect();
    assert_eq!(String::from_utf8(joined).unwrap(), format!(" {text}"));
    let snowman = tokenizer.clone().special_tokens(false).encode("☃").unwrap().ids;
    let joined: Vec<u8> =
        snowman.iter().flat_map(|&id| bytes[id as usize].clone().unwrap()).collect();
    assert_eq!(String::from_utf8(joined).unwrap(), " ☃");
    assert_eq!(TextInput::encode(&text.to_owned(), &tokenizer).unwrap().ids, all.ids);
}

#[test]
fn a_template_finds_the_answers_in_the_text() {
    let config = r#"{"tokenizer_class": "LlamaTokenizer", "legacy": false}"#;
    let tokenizer = load_with("bpe", config).unwrap();
    let template = fulmen_text::ChatTemplate::from_source(
        "{% for message in messages %}<s>{% if message.role == 'assistant' %}{% generation %}{{ message.content }}</s>\
         {% endgeneration %}{% else %}{{ message.content }}{% endif %}{% endfor %}",
    )
    .unwrap();
    let chat = fulmen_text::Chat::from_json(
        r#"[{"role": "user", "content": "rain ☃"}, {"role": "assistant", "content": "ﬁ mud"}]"#,
    )
    .unwrap();
    let tokens = template.render(&chat).unwrap().tokenize(&tokenizer).unwrap();
    let answers = tokens.ids.iter().zip(&tokens.generation).filter(|(_, answer)| **answer);
    let answers: Vec<u32> = answers.map(|(id, _)| *id).collect();
    assert_eq!(tokenizer.decode(&answers, false).unwrap(), "ﬁ mud</s>");
    assert_eq!(tokens.ids.iter().filter(|&&id| id == 1).count(), 2);
}

#[test]
fn what_a_folder_says_and_cannot_be_done_is_an_error() {
    let t5 = message(load_with("bpe", r#"{"tokenizer_class": "BertTokenizer"}"#));
    assert!(t5.contains("the `tokenizer_class` BertTokenizer is not supported"), "{t5}");
    assert!(t5.contains("save_pretrained"), "{t5}");
    let order = message(load_with("no_prefix", r#"{"tokenizer_class": "XLMRobertaTokenizer"}"#));
    assert!(
        order.contains("begin with <unk>, <s> and </s>, but those of the model with <pad>"),
        "{order}"
    );
    let prefix = message(load_with("no_prefix", r#"{"add_prefix_space": true}"#));
    assert!(prefix.contains("add_dummy_prefix=false"), "{prefix}");
    let missing = message(load_with("bpe", r#"{"add_bos_token": true}"#));
    assert!(missing.contains("the folder names no `bos_token`"), "{missing}");
    let gap = r#"{"added_tokens_decoder": {"605": {"content": "<x>", "special": true}}}"#;
    let gap = message(load_with("bpe", gap));
    assert!(gap.contains("\"<x>\" has the id 605, but the tokens before it end at 599"), "{gap}");
    let other = r#"{"added_tokens_decoder": {"400": {"content": "<x>", "special": true}}}"#;
    let other = message(load_with("bpe", other));
    assert!(other.contains("disagree: the token 400 is"), "{other}");
    let twice = r#"{"added_tokens_decoder": {"600": {"content": "<s>", "special": true}}}"#;
    let twice = message(load_with("bpe", twice));
    assert!(twice.contains("the token \"<s>\" has two ids"), "{twice}");
    let flag =
        message(load_with("bpe", r#"{"tokenizer_class": "LlamaTokenizer", "legacy": "no"}"#));
    assert!(flag.contains("`legacy` is \"no\", expected true or false"), "{flag}");
    let none = message(Tokenizer::load(folder(&[]).path()));
    assert!(none.contains("neither tokenizer.json nor one of tokenizer.model"), "{none}");
    assert!(none.contains("let transformers write one"), "{none}");
    let text = folder(&[("tokenizer.model", b"hello")]);
    let text = message(Tokenizer::load(text.path()));
    assert!(text.contains("not a tokenizer.json"), "{text}");
    let files: [(&str, &[u8]); 2] =
        [("tokenizer.model", &model("bpe")), ("config.json", br#"{"model_type": "bert"}"#)];
    let kind = message(Tokenizer::load(folder(&files).path()));
    assert!(kind.contains("that of a model of the type bert is not known"), "{kind}");
}

#[test]
fn the_class_follows_from_the_model_where_the_folder_names_none() {
    let files: [(&str, &[u8]); 3] = [
        ("tokenizer.model", &model("bpe")),
        ("config.json", br#"{"model_type": "mistral"}"#),
        ("added_tokens.json", br#"{"<pad>": 600}"#),
    ];
    let tokenizer = Tokenizer::load(folder(&files).path()).unwrap();
    assert_eq!(tokenizer.encode("").unwrap().ids, [1]);
    assert_eq!((tokenizer.pad_id(), tokenizer.vocab_size()), (Some(600), 601));
}

#[test]
fn both_languages_of_a_translator_have_transformers_tokens() {
    let expected = json("marian.json");
    let vocabulary = expected["vocab"].to_string();
    let files: [(&str, &[u8]); 4] = [
        ("source.spm", &model("unigram")),
        ("target.spm", &model("rules")),
        ("vocab.json", vocabulary.as_bytes()),
        ("config.json", br#"{"model_type": "marian"}"#),
    ];
    let files = folder(&files);
    let source = Tokenizer::load(files.path()).unwrap();
    let target = Tokenizer::load_target(files.path()).unwrap();
    for (name, tokenizer) in [("source", &source), ("target", &target)] {
        assert_eq!(tokenizer.vocab_size(), expected["vocab"].as_object().unwrap().len());
        for (text, expected) in array(&expected["texts"]).iter().zip(array(&expected[name])) {
            let encoding = tokenizer.encode(text.as_str().unwrap()).unwrap();
            assert_eq!(encoding.ids, ids(expected), "{name}: {text}");
        }
    }
    assert_eq!(source.encode_pair("rain", "the mud").unwrap().ids, ids(&expected["pair"]));
    assert_eq!(source.special_id(">>deu<<").unwrap(), 1);
    let text = "the rain follows";
    assert_eq!(source.decode(&source.encode(text).unwrap().ids, true).unwrap(), text);
    let saved = tempfile::tempdir().unwrap();
    source.save(saved.path().join("tokenizer.json")).unwrap();
    let saved = Tokenizer::load_target(saved.path()).unwrap();
    assert_eq!(saved.encode(text).unwrap(), source.encode(text).unwrap());
    let copy = tempfile::tempdir().unwrap();
    Tokenizer::copy_files(files.path(), copy.path()).unwrap();
    assert_eq!(Tokenizer::load_target(copy.path()).unwrap().describe(), target.describe());

    for (vocabulary, says) in [
        (r#"{"</s>": 0, "<unk>": 2, "<pad>": 3}"#, "vocab.json: no token has the id 1"),
        (r#"{"</s>": 0, "<unk>": 0}"#, "have the id 0"),
        (r#"{"</s>": 0, "<unk>": 1}"#, "the special token \"<pad>\" is not in vocab.json"),
        (r#"{"</s>": "x"}"#, "the token \"</s>\" has no id"),
        ("[]", "not a JSON object"),
    ] {
        std::fs::write(files.path().join("vocab.json"), vocabulary).unwrap();
        let error = message(Tokenizer::load(files.path()));
        assert!(error.contains(says), "{says}: {error}");
    }
    std::fs::remove_file(files.path().join("vocab.json")).unwrap();
    let error = message(Tokenizer::load(files.path()));
    assert!(error.contains("vocab.json: Marian's tokenizers need this file"), "{error}");
}

/// Files of a tokenizer are copied, and nothing else.
#[test]
fn a_copied_folder_has_the_same_tokenizer() {
    let from = folder(&[
        ("tokenizer.model", &model("bpe")),
        ("tokenizer_config.json", br#"{"tokenizer_class": "LlamaTokenizer"}"#),
        ("chat_template.jinja", b"{{ messages }}"),
        ("additional_chat_templates/tools.jinja", b"{{ tools }}"),
        ("model.safetensors", b""),
    ]);
    let to = tempfile::tempdir().unwrap();
    let to = to.path().join("new");
    Tokenizer::copy_files(from.path(), &to).unwrap();
    let [own, copied] = [from.path(), &to].map(|folder: &Path| Tokenizer::load(folder).unwrap());
    assert_eq!(own.describe(), copied.describe());
    assert!(to.join("additional_chat_templates/tools.jinja").is_file());
    assert!(to.join("chat_template.jinja").is_file() && !to.join("model.safetensors").exists());
    let none = tempfile::tempdir().unwrap();
    let error = Tokenizer::copy_files(none.path(), &to).unwrap_err().to_string();
    assert!(error.contains("the folder has no tokenizer to copy"), "{error}");
}

/// A field of protobuf with bytes.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut length = content.len();
    while length >= 0x80 {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend(content);
    bytes
}

/// A piece of this kind.
fn piece(text: &[u8], score: f32, kind: u8) -> Vec<u8> {
    let mut content = field(1, text);
    content.push(0x15);
    content.extend(score.to_le_bytes());
    content.extend([0x18, kind]);
    field(1, &content)
}

#[test]
fn forged_models_are_refused() {
    let unknown = piece(b"<unk>", 0.0, 2);
    let a = piece(b"a", -1.0, 1);
    let training = |content: &[u8]| field(2, content);
    let normalization = |content: &[u8]| field(3, content);
    let cases: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("0 unknown pieces, expected one", vec![a.clone()]),
        ("2 unknown pieces", vec![unknown.clone(), piece(b"<u>", 0.0, 2)]),
        ("piece 1: the piece has no text", vec![unknown.clone(), piece(b"", 0.0, 1)]),
        ("piece 2: \"a\" appears for the second time", vec![unknown.clone(), a.clone(), a.clone()]),
        ("1025 bytes, expected at most 1024", vec![unknown.clone(), piece(&[b'a'; 1025], 0.0, 1)]),
        ("the score NaN", vec![unknown.clone(), piece(b"a", f32::NAN, 1)]),
        ("the score inf", vec![unknown.clone(), piece(b"a", f32::INFINITY, 1)]),
        ("the unknown type 9", vec![unknown.clone(), piece(b"a", 0.0, 9)]),
        ("invalid utf-8", vec![unknown.clone(), piece(b"\xff", 0.0, 1)]),
        ("the character NUL", vec![unknown.clone(), piece(b"a\0", 0.0, 1)]),
        ("\"<0x0a>\" is not a byte", vec![unknown.clone(), piece(b"<0x0a>", 0.0, 6)]),
        ("1 pieces for bytes, expected 0", vec![unknown.clone(), piece(b"<0x0A>", 0.0, 6)]),
        ("0 pieces for bytes, expected 256", vec![unknown.clone(), training(&[0x98, 2, 1])]),
        ("model_type=word", vec![unknown.clone(), training(&[0x18, 3])]),
        ("model_type=char", vec![unknown.clone(), training(&[0x18, 4])]),
        ("model_type 7 is unknown", vec![unknown.clone(), training(&[0x18, 7])]),
        ("treat_whitespace_as_suffix", vec![unknown.clone(), training(&[0xc0, 1, 1])]),
        ("escape_whitespaces=false", vec![unknown.clone(), normalization(&[0x28, 0])]),
        ("denormalizer_spec", vec![unknown.clone(), field(5, &field(2, b"xxxx"))]),
        ("it has no length", vec![unknown.clone(), normalization(&field(2, b"xx"))]),
        (
            "longer than the rest",
            vec![unknown.clone(), normalization(&field(2, b"\x08\0\0\0aaaa"))],
        ),
        (
            "not a multiple of 4",
            vec![unknown.clone(), normalization(&field(2, b"\x03\0\0\0aaa\0"))],
        ),
        ("has no end", vec![unknown.clone(), normalization(&field(2, b"\x04\0\0\0\0\0\0\0a"))]),
        (
            "has no replacement",
            vec![unknown.clone(), normalization(&field(2, b"\x04\0\0\0\xff\0\0\x80\0"))],
        ),
        ("ends after", vec![unknown.clone(), vec![0x0a, 0x90, 0xff, 0x7f]]),
        ("more than 10 bytes", vec![unknown.clone(), [&[0x08][..], &[0xff; 11]].concat()]),
        ("the unknown wire type 3", vec![unknown.clone(), vec![0x0b]]),
        ("the number 0", vec![unknown.clone(), vec![0x02, 0x00]]),
    ];
    for (expected, parts) in cases {
        let error = message(load(&parts.concat()));
        assert!(error.contains(expected), "{expected}: {error}");
    }
    assert_eq!(load(&[unknown, a].concat()).unwrap().encode("aab").unwrap().ids, [0, 1, 1, 0]);
}

/// A file that is cut or changed at any byte is an error, or a tokenizer that works.
#[test]
fn damaged_models_do_not_panic() {
    for name in ["bpe", "rules", "unused"] {
        let bytes = model(name);
        let try_out = |bytes: &[u8], what: &str| {
            if let Ok(tokenizer) = load(bytes) {
                for text in ["the ﬁ  rain…\n\n☃ Ａ Ｂ <s>", "rain@ e\u{301}\u{301} Fluß"] {
                    let encoded = tokenizer.encode(text);
                    assert!(encoded.is_ok(), "{name}, {what}: {encoded:?}");
                    let _ = tokenizer.decode(&encoded.unwrap().ids, false);
                }
            }
        };
        for length in (0..bytes.len()).step_by(397) {
            try_out(&bytes[..length], &format!("cut at {length}"));
        }
        // The rules are at the end.
        let first = bytes.len().saturating_sub(300);
        for place in (0..first).step_by(211).chain((first..bytes.len()).step_by(11)) {
            for change in [0x01, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[place] ^= change;
                try_out(&damaged, &format!("{change:#x} at {place}"));
            }
        }
    }
}

#[test]
fn ids_of_ranks_are_those_of_tiktoken() {
    let expected = json("tiktoken.json");
    let texts: Vec<&str> =
        array(&expected["texts"]).iter().map(|text| text.as_str().unwrap()).collect();
    for (name, of_encoding) in expected["encodings"].as_object().unwrap() {
        let tokenizer = Tiktoken::named(name).unwrap().read(path("ranks.tiktoken")).unwrap();
        let tokenizer = tokenizer.special_tokens(false);
        for (token, id) in of_encoding["special"].as_object().unwrap() {
            assert_eq!(u64::from(tokenizer.special_id(token).unwrap()), id.as_u64().unwrap());
        }
        for (text, expected) in texts.iter().zip(array(&of_encoding["ids"])) {
            let encoding = tokenizer.encode(text).unwrap();
            assert_eq!(encoding.ids, ids(expected), "{name}: {text:?}");
            if name != "qwen" {
                assert_eq!(tokenizer.decode(&encoding.ids, false).unwrap(), *text, "{name}");
            }
        }
    }
}

#[test]
fn folders_with_ranks_are_loaded() {
    let ranks = std::fs::read(path("ranks.tiktoken")).unwrap();
    let config = br#"{"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": {
        "564": {"content": "<|finetune_right_pad_id|>", "special": true}}}"#;
    let llama = folder(&[
        ("original/tokenizer.model", &ranks),
        ("config.json", br#"{"model_type": "llama"}"#),
        ("tokenizer_config.json", config),
    ]);
    let tokenizer = Tokenizer::load(llama.path()).unwrap();
    assert_eq!(tokenizer.vocab_size(), 560 + 256);
    assert_eq!(tokenizer.special_id("<|eot_id|>").unwrap(), 569);
    assert_eq!(tokenizer.special_id("<|finetune_right_pad_id|>").unwrap(), 564);
    assert!(tokenizer.special_id("<|reserved_special_token_2|>").is_err());
    let encoding = tokenizer.encode("rain<|eot_id|>").unwrap();
    assert_eq!((encoding.ids[0], encoding.ids.last()), (560, Some(&569)));
    assert_eq!(tokenizer.encode_pair("a", "b").unwrap().type_ids, [0, 0, 1, 1]);
    let saved = llama.path().join("tokenizer.json");
    tokenizer.save(&saved).unwrap();
    let loaded = Tokenizer::load(llama.path()).unwrap();
    assert_eq!(
        loaded.encode("The rain, the mud").unwrap(),
        tokenizer.encode("The rain, the mud").unwrap()
    );

    let qwen = folder(&[
        ("qwen.tiktoken", &ranks),
        ("tokenizer_config.json", br#"{"tokenizer_class": "QWenTokenizer"}"#),
    ]);
    let tokenizer = Tokenizer::load(qwen.path()).unwrap();
    assert_eq!(tokenizer.vocab_size(), 560 + 208);
    assert_eq!(tokenizer.special_id("<|im_start|>").unwrap(), 561);
    let unknown = folder(&[("tokenizer.model", &ranks)]);
    let error = message(Tokenizer::load(unknown.path()));
    assert!(error.contains("name it: Tiktoken::named"), "{error}");
    let error = message(Tokenizer::from_file(unknown.path().join("tokenizer.model")));
    assert!(error.contains("its name does not tell the encoding"), "{error}");
    let error = Tiktoken::named("gpt9").unwrap_err().to_string();
    assert!(error.contains("\"gpt9\" is not known, only r50k_base"), "{error}");
}

#[test]
fn damaged_ranks_are_refused() {
    let text = std::fs::read_to_string(path("ranks.tiktoken")).unwrap();
    let read = |text: &str| {
        let folder = folder(&[("r", text.as_bytes())]);
        Tiktoken::new(r"\w+|\W+").special_token("<end>", 600).read(folder.path().join("r"))
    };
    assert_eq!(read(&text).unwrap().vocab_size(), 601);
    let with = |line: &str| format!("{text}{line}\n");
    let without = |number: usize| {
        let lines = text.lines().enumerate().filter(|(line, _)| *line != number);
        lines.map(|(_, line)| format!("{line}\n")).collect::<String>()
    };
    for (expected, text) in [
        ("no token is the byte 0x41", without(0x41)),
        ("no token has the rank 300, but one has 559", without(300)),
        ("line 561: the token has the ranks 97 and 560", with("YQ== 560")),
        ("two tokens have the rank 5", with("eHl6enk= 5")),
        ("line 561: the token is not in base64", with("YQ= 560")),
        ("line 561: the token is empty", with(" 560")),
        (
            "the token has 1026 bytes, expected at most 1024",
            with(&format!("{} 560", "AAAA".repeat(342))),
        ),
        ("line 561: expected a token and its rank", with("YQ==")),
        ("line 561: the rank is not a number", with("eHl6enk= -1")),
        ("tokens have ranks up to 4000000000", with("eHl6enk= 4000000000")),
        ("the rank 600 of a token is that of a special token", with("eHl6enk= 600")),
        ("no token is the byte 0x00", String::new()),
    ] {
        let error = message(read(&text));
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let pattern = Tiktoken::new("(").read(path("ranks.tiktoken"));
    assert!(message(pattern).contains("the pattern \"(\" is not a regular expression"));
    let named = Tiktoken::new(".").special_token("<a>", 560).special_token("<a>", 561);
    let twice = message(named.read(path("ranks.tiktoken")));
    assert!(twice.contains("the special token \"<a>\" has the ids 560 and 561"), "{twice}");
    let far = Tiktoken::new(".").special_token("<a>", u32::MAX).read(path("ranks.tiktoken"));
    assert!(message(far).contains("expected at most 1048576"));
    let taken = Tiktoken::new(".").special_token("<a>", 300).read(path("ranks.tiktoken"));
    assert!(message(taken).contains("the rank 300 of a token is that of a special token"));
    let bytes = text.as_bytes();
    for place in (0..bytes.len()).step_by(173) {
        let mut damaged = bytes.to_vec();
        damaged[place] ^= 0x11;
        let _ = read(&String::from_utf8_lossy(&damaged));
        let _ = read(&text[..place]);
    }
}
