//! Texts as samples, compared with Hugging Face's Python libraries (`reference/text.py`).

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use fulmen_cache::CacheExt;
use fulmen_data::{
    Buckets, DataLoader, Dataset, Fingerprint, HostBatch, Items, Result, Sample, SampleRng, Source,
    Stream, StreamItem,
};
use fulmen_tables::{JsonLines, TextFile};
use fulmen_text::{
    ByteLevelBpe, CausalLabels, Encoding, IGNORE_INDEX, IndexedDocuments, LongDocuments,
    MaskedLanguageModel, PackedDocuments, PackedStream, Side, TextInput, TokenArray, TokenBlocks,
    TokenCollator, TokenFile, TokenFileWriter, TokenStore, Tokenizer, Truncation,
    choose_boundaries, token_lengths,
};
use serde_json::Value;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(name)
}

fn reference() -> Value {
    serde_json::from_slice(&std::fs::read(path("text.json")).unwrap()).unwrap()
}

fn tokenizer(name: &str) -> Tokenizer {
    Tokenizer::from_file(path(&format!("text_{name}.json"))).unwrap()
}

fn list<T: serde::de::DeserializeOwned>(value: &Value) -> Vec<T> {
    serde_json::from_value(value.clone()).unwrap()
}

fn array(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

/// Items in memory, by index and as a stream.
#[derive(Clone, Debug)]
struct Memory<T>(Vec<T>);

impl<T: Clone + Send + Sync + 'static> Source for Memory<T> {
    type Item = T;
    fn len(&self) -> usize {
        self.0.len()
    }
    fn get(&self, index: usize) -> Result<T> {
        Ok(self.0[index].clone())
    }
    fn origin(&self, index: usize) -> String {
        format!("memory, item {index}")
    }
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("items", self.0.len().to_le_bytes());
        Ok(())
    }
}

impl<T: Clone + Send + Sync + 'static> Stream for Memory<T> {
    type Item = T;
    fn len(&self) -> Option<usize> {
        Some(self.0.len())
    }
    fn items(&self, _epoch: u64) -> Result<Items<T>> {
        let item = |(i, item)| {
            Ok(StreamItem { index: i as u64, origin: format!("memory, item {i}"), item })
        };
        Ok(Box::new(self.0.clone().into_iter().enumerate().map(item)))
    }
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        Source::fingerprint(self, fingerprint)
    }
}

fn blocks(stream: &impl Stream<Item = Encoding>) -> Vec<Encoding> {
    stream.items(0).unwrap().map(|block| block.unwrap().item).collect()
}

#[test]
fn tokens_are_those_of_the_python_library() {
    let reference = reference();
    for name in ["bpe", "wordpiece", "unigram", "split"] {
        let expected = &reference[name];
        let tokenizer = tokenizer(name);
        let worded = tokenizer.clone().words(true);
        let plain = tokenizer.clone().special_tokens(false);
        assert_eq!(tokenizer.vocab_size() as u64, expected["vocab_size"].as_u64().unwrap());
        let check = |encoding: Encoding, fast: Encoding, expected: &Value, case: &Value| {
            let ids: Vec<u32> = list(&expected["ids"]);
            assert_eq!(encoding.ids, ids, "{case}");
            assert_eq!(encoding.words, list::<Option<u32>>(&expected["words"]), "{case}");
            let or_zeros =
                |values: Vec<u32>| if values.is_empty() { vec![0; ids.len()] } else { values };
            assert_eq!(
                or_zeros(encoding.type_ids.clone()),
                list::<u32>(&expected["type_ids"]),
                "{case}"
            );
            let special = encoding.special.iter().map(|&special| u32::from(special)).collect();
            assert_eq!(or_zeros(special), list::<u32>(&expected["special"]), "{case}");
            assert_eq!(Encoding { words: Vec::new(), ..encoding }, fast, "{case}");
        };
        for case in array(&expected["texts"]) {
            let text = case["text"].as_str().unwrap();
            let fast = tokenizer.encode(text).unwrap();
            assert_eq!(
                tokenizer.decode(&fast.ids, true).unwrap(),
                case["decoded"].as_str().unwrap()
            );
            check(worded.encode(text).unwrap(), fast, &case["encoding"], &case["text"]);
            assert_eq!(plain.encode(text).unwrap().ids, list::<u32>(&case["plain"]));
        }
        for case in array(&expected["pairs"]) {
            let pair: Vec<String> = list(&case["pair"]);
            let encode = |tokenizer: &Tokenizer| tokenizer.encode_pair(&pair[0], &pair[1]).unwrap();
            check(encode(&worded), encode(&tokenizer), &case["encoding"], &case["pair"]);
        }
    }
}

#[test]
fn a_tokenizer_trained_here_is_the_python_librarys() {
    let reference = reference();
    let python = tokenizer("bpe");
    // Python trained on the first 16 texts.
    let corpus: Vec<String> =
        list::<String>(&reference["packing"]["texts"]).into_iter().take(16).collect();
    let bpe = ByteLevelBpe::new(420).special_tokens(["<|endoftext|>"]);
    let folder = tempfile::tempdir().unwrap();
    bpe.train(&corpus)
        .unwrap()
        .special_tokens(false)
        .max_length(3)
        .unwrap()
        .save(folder.path().join("own.json"))
        .unwrap();
    let loaded = Tokenizer::from_file(folder.path().join("own.json")).unwrap();
    let tokens = |tokenizer: &Tokenizer| (0..420).map(|id| tokenizer.token(id)).collect::<Vec<_>>();
    assert_eq!(tokens(&loaded), tokens(&python));
    for case in array(&reference["bpe"]["texts"]) {
        assert_eq!(
            loaded.encode(case["text"].as_str().unwrap()).unwrap().ids,
            list::<u32>(&case["plain"]),
            "{case}"
        );
    }
}

#[test]
fn a_trained_tokenizer_adds_what_its_template_says_and_spells_numbers() {
    let texts = ["12345 67 12345", "12345 12345"];
    let bpe =
        ByteLevelBpe::new(300).special_tokens(["<pad>", "<s>", "</s>"]).template("<s> $A </s>");
    let [joined, single] =
        [false, true].map(|single| bpe.clone().single_digits(single).train(texts).unwrap());
    let ids = joined.encode("12345").unwrap().ids;
    assert_eq!((ids.len(), ids[0], ids[2]), (3, 1, 2));
    assert_eq!(single.encode("12345").unwrap().ids.len(), 7);
    assert_eq!(single.decode(&single.encode("6 7⚡").unwrap().ids, true).unwrap(), "6 7⚡");
    let message = ByteLevelBpe::new(258)
        .special_tokens(["a", "b", "c"])
        .train(texts)
        .unwrap_err()
        .to_string();
    assert!(message.contains("use at least 259"), "{message}");
    let message = bpe.template("$A <end>").train(texts).unwrap_err().to_string();
    assert!(message.contains("<end>"), "{message}");
}

#[test]
fn pairs_are_cut_as_the_python_library_cuts_them() {
    let mut refused = 0;
    for name in ["bpe", "wordpiece", "unigram", "split"] {
        for case in array(&reference()[name]["truncated"]) {
            let strategy = match case["strategy"].as_str().unwrap() {
                "longest_first" => Truncation::LongestFirst,
                "only_first" => Truncation::OnlyFirst,
                _ => Truncation::OnlySecond,
            };
            let side = if case["side"] == "left" { Side::Left } else { Side::Right };
            let length = case["length"].as_u64().unwrap() as usize;
            let cut = tokenizer(name).truncation(strategy).unwrap().max_length(length).unwrap();
            let cut = cut.truncation_side(side).unwrap();
            let pair: Vec<String> = list(&case["pair"]);
            match (cut.encode_pair(&pair[0], &pair[1]), &case["ids"]) {
                (Ok(encoding), expected) => {
                    assert_eq!(encoding.ids, list::<u32>(expected), "{case}")
                }
                (Err(error), Value::Null) => {
                    refused += 1;
                    assert!(error.to_string().contains("cannot encode the text"), "{error}");
                }
                (Err(error), _) => panic!("{error}"),
            }
        }
    }
    assert!(refused > 0);
}

/// One field of all samples, one row each.
fn rows<T: fulmen_data::Element + bytemuck::CheckedBitPattern>(
    data: &dyn Dataset,
    name: &str,
) -> Vec<Vec<T>> {
    let batch = HostBatch::collate(data, &(0..data.len()).collect::<Vec<_>>()).unwrap();
    let field = batch.field_index(name).unwrap();
    let length = batch.fields()[field].shape[0];
    batch.values::<T>(field).unwrap().chunks(length).map(<[T]>::to_vec).collect()
}

fn as_bool(rows: Vec<Vec<i32>>) -> Vec<Vec<bool>> {
    rows.into_iter().map(|row| row.into_iter().map(|value| value != 0).collect()).collect()
}

#[test]
fn samples_are_padded_and_cut_as_transformers_does_it() {
    let reference = reference();
    let texts: Vec<String> = array(&reference["wordpiece"]["texts"])
        .iter()
        .map(|case| case["text"].as_str().unwrap().to_owned())
        .collect();
    let pairs: Vec<(String, String)> = array(&reference["wordpiece"]["pairs"])
        .iter()
        .map(|case| serde_json::from_value(case["pair"].clone()).unwrap())
        .collect();
    let side = |value: &Value| if value == "left" { Side::Left } else { Side::Right };
    for case in array(&reference["samples"]) {
        let tokenizer = tokenizer("wordpiece")
            .max_length(16)
            .unwrap()
            .truncation_side(side(&case["truncation"]))
            .unwrap();
        let samples = TokenCollator::new(16, tokenizer.pad_id().unwrap())
            .padding(side(&case["padding"]))
            .token_type_ids(true);
        let check = |data: &dyn Dataset, expected: &Value| {
            assert_eq!(rows::<i32>(data, "input_ids"), list::<Vec<i32>>(&expected["input_ids"]));
            assert_eq!(
                rows::<i32>(data, "token_type_ids"),
                list::<Vec<i32>>(&expected["token_type_ids"])
            );
            assert_eq!(
                rows::<bool>(data, "attention_mask"),
                as_bool(list(&expected["attention_mask"]))
            );
        };
        let single = samples.clone().dataset(tokenizer.tokenize(Memory(texts.clone()))).unwrap();
        check(&single, &case["single"]);
        check(&samples.dataset(tokenizer.tokenize(Memory(pairs.clone()))).unwrap(), &case["pairs"]);
    }
}

#[test]
fn causal_labels_are_those_of_transformers() {
    let case = &reference()["causal"];
    let tokenizer = tokenizer("bpe");
    let length = array(&case["input_ids"][0]).len();
    let samples = TokenCollator::new(length, tokenizer.special_id("<|endoftext|>").unwrap());
    let texts = tokenizer.tokenize(Memory(list::<String>(&case["texts"])));
    let data = samples.clone().causal(CausalLabels::Same).dataset(texts.clone()).unwrap();
    assert_eq!(rows::<i32>(&data, "input_ids"), list::<Vec<i32>>(&case["input_ids"]));
    assert_eq!(rows::<i32>(&data, "labels"), list::<Vec<i32>>(&case["labels"]));
    assert_eq!(rows::<bool>(&data, "attention_mask"), as_bool(list(&case["attention_mask"])));
    // The labels are shifted by one, as the model would shift them.
    let data = samples.causal(CausalLabels::Shifted).dataset(texts).unwrap();
    let moved = list::<Vec<i32>>(&case["labels"])
        .into_iter()
        .map(|row| [&row[1..], &[IGNORE_INDEX]].concat());
    assert_eq!(rows::<i32>(&data, "labels"), moved.collect::<Vec<_>>());
}

/// The tokenized documents of the reference's packing, and the token that ends each.
fn documents(case: &Value) -> (fulmen_text::Tokenized<Memory<String>>, u32) {
    let tokenizer = tokenizer("bpe");
    let end = tokenizer.special_id("<|endoftext|>").unwrap();
    (tokenizer.tokenize(Memory(list::<String>(&case["texts"]))), end)
}

fn packed_array(case: &Value) -> TokenArray {
    let (documents, end) = documents(case);
    let mut tokens = TokenArray::new(420).unwrap().separator(end);
    tokens.extend(&documents, 3).unwrap();
    tokens
}

#[test]
fn joined_documents_are_cut_into_the_blocks_of_the_reference() {
    let case = &reference()["packing"];
    let length = case["length"].as_u64().unwrap() as usize;
    let blocks = TokenBlocks::new(packed_array(case), length).unwrap();
    let data = TokenCollator::new(length, 0)
        .causal(CausalLabels::Shifted)
        .dataset(blocks.clone())
        .unwrap();
    let ids = list::<Vec<i32>>(&case["blocks"]);
    let mut shifted = list::<Vec<i32>>(&case["shifted"]);
    assert_eq!(rows::<i32>(&data, "input_ids"), ids);
    shifted.last_mut().unwrap().resize(length, IGNORE_INDEX);
    assert_eq!(rows::<i32>(&data, "labels"), shifted);
    let same =
        TokenCollator::new(length, 0).causal(CausalLabels::Same).dataset(blocks.clone()).unwrap();
    assert_eq!(rows::<i32>(&same, "labels"), ids);

    // A stream gives exactly the same blocks, with and without the remainder.
    let (documents, end) = documents(case);
    for keep in [false, true] {
        let stream = PackedStream::new(documents.clone(), length)
            .unwrap()
            .separator(end)
            .keep_remainder(keep);
        let blocks = blocks.clone().keep_remainder(keep);
        let by_index: Vec<Encoding> =
            (0..blocks.len()).map(|index| blocks.get(index).unwrap()).collect();
        assert_eq!(self::blocks(&stream), by_index);
        assert_eq!(by_index.len(), ids.len() + usize::from(keep));
    }
}

#[test]
fn no_label_reaches_into_the_next_document() {
    let documents = vec![vec![11u32, 12, 13], vec![21, 22], vec![31, 32, 33, 34, 35]];
    let mut tokens = TokenArray::new(100).unwrap().separator(0);
    tokens.extend(&Memory(documents.clone()), 0).unwrap();
    let blocks = TokenBlocks::new(tokens, 4).unwrap();
    // The first block ends with a document, the second within one.
    let ids = [vec![11, 12, 13, 0], vec![21, 22, 0, 31], vec![32, 33, 34, 35]];
    let shifted = |documents| {
        TokenCollator::new(4, 0)
            .documents(documents)
            .causal(CausalLabels::Shifted)
            .dataset(blocks.clone())
            .unwrap()
    };
    assert_eq!(rows::<i32>(&shifted(true), "input_ids"), ids);
    let labels = [vec![12, 13, 0, -100], vec![22, 0, -100, 32], vec![33, 34, 35, 0]];
    assert_eq!(rows::<i32>(&shifted(true), "labels"), labels);
    assert_eq!(
        rows::<i32>(&shifted(true), "segment_ids"),
        [vec![1; 4], vec![1, 1, 1, 2], vec![1; 4]]
    );
    assert_eq!(
        rows::<i32>(&shifted(false), "labels"),
        [vec![12, 13, 0, 21], vec![22, 0, 31, 32], vec![33, 34, 35, 0]]
    );
    let same = TokenCollator::new(4, 0)
        .documents(true)
        .causal(CausalLabels::Same)
        .dataset(blocks.clone())
        .unwrap();
    assert_eq!(
        rows::<i32>(&same, "labels"),
        [vec![11, 12, 13, 0], vec![21, 22, 0, -100], vec![32, 33, 34, 35]]
    );

    // A stream gives the same blocks, with longer texts truncated.
    let stream = PackedStream::new(Memory(documents), 4).unwrap().separator(0);
    let by_index: Vec<Encoding> = (0..3).map(|index| blocks.get(index).unwrap()).collect();
    assert_eq!(self::blocks(&stream), by_index);
    assert_eq!((&by_index[0].starts, by_index[0].next), (&vec![4], Some(21)));
    let mut whole =
        Encoding { starts: vec![4], ..Encoding::from_ids(vec![11, 12, 13, 0, 21, 22, 0]) };
    whole.truncate(4, Side::Right);
    assert_eq!(whole, by_index[0]);
    let one = TokenCollator::new(4, 0)
        .documents(true)
        .causal(CausalLabels::Shifted)
        .dataset(Memory(vec![whole]))
        .unwrap();
    assert_eq!(rows::<i32>(&one, "labels"), [[12, 13, 0, -100]]);
    // No document may start after the tokens if the next token is unknown.
    let wrong = Encoding { starts: vec![2], ..Encoding::from_ids(vec![1, 2]) };
    let wrong = TokenCollator::new(4, 0).dataset(Memory(vec![wrong])).unwrap();
    assert!(HostBatch::collate(&wrong, &[0]).unwrap_err().is_usage());
}

#[test]
fn documents_side_by_side_are_those_of_the_reference() {
    let case = &reference()["packing"];
    let length = case["length"].as_u64().unwrap() as usize;
    let tokens = packed_array(case);
    let fit = PackedDocuments::new(tokens, length).unwrap();
    let end = documents(case).1;
    let samples = TokenCollator::new(length, end).documents(true).causal(CausalLabels::Shifted);
    let data = samples.clone().dataset(fit.clone()).unwrap();
    let expected = |name: &str| -> Vec<Vec<i32>> {
        array(&case["first_fit"]).iter().map(|row| list(&row[name])).collect()
    };
    for name in ["input_ids", "segment_ids", "position_ids", "labels"] {
        assert_eq!(rows::<i32>(&data, name), expected(name), "{name}");
    }
    let mask = as_bool(expected("attention_mask"));
    assert_eq!(rows::<bool>(&data, "attention_mask"), mask);
    let padding = mask.iter().flatten().filter(|&&token| !token).count() as f64
        / (mask.len() * length) as f64;
    assert!((fit.padding_share() - padding).abs() < 1e-12);

    let decreasing = fit.clone().decreasing(true);
    let ids: Vec<Vec<u32>> =
        (0..decreasing.len()).map(|index| decreasing.get(index).unwrap().ids).collect();
    assert_eq!(ids, list::<Vec<u32>>(&case["decreasing"]));
    assert!(decreasing.padding_share() <= fit.padding_share());

    // With as many open blocks as there are blocks, a stream packs the same blocks. It returns full
    // blocks earlier, so the contents are compared without their order.
    let stream = PackedStream::first_fit(documents(case).0, length, 1000).unwrap().separator(end);
    let mut streamed = blocks(&stream);
    let mut by_index = (0..fit.len()).map(|i| fit.get(i).unwrap()).collect::<Vec<_>>();
    streamed.sort_by(|a, b| a.ids.cmp(&b.ids));
    by_index.sort_by(|a, b| a.ids.cmp(&b.ids));
    assert_eq!(streamed, by_index);
}

#[test]
fn first_fit_loses_and_doubles_no_token() {
    let mut random = SampleRng::new(5, 0, 0);
    for round in 0..30 {
        let length = random.in_range(1..20);
        let open = random.in_range(1..5);
        let mut next = 0;
        let documents: Vec<Vec<u32>> = (0..random.in_range(1..60))
            .map(|_| {
                let start = next;
                next += random.below(30) as u32;
                (start..next).collect()
            })
            .collect();
        let mut tokens = TokenArray::new(100_000).unwrap();
        tokens.extend(&Memory(documents.clone()), 1).unwrap();
        if tokens.num_tokens() == 0 {
            continue;
        }
        let fit = PackedDocuments::new(tokens, length).unwrap().decreasing(round % 2 == 0);
        let by_index: Vec<Encoding> = (0..fit.len()).map(|index| fit.get(index).unwrap()).collect();
        for blocks in [
            by_index,
            blocks(&PackedStream::first_fit(Memory(documents.clone()), length, open).unwrap()),
        ] {
            assert!(blocks.iter().all(|block| (1..=length).contains(&block.len())));
            let mut all: Vec<u32> = blocks.into_iter().flat_map(|block| block.ids).collect();
            all.sort_unstable();
            assert_eq!(all, (0..next).collect::<Vec<_>>());
        }
        let truncated = PackedStream::first_fit(Memory(documents.clone()), length, open).unwrap();
        let expected_tokens: usize =
            documents.iter().map(|document| document.len().min(length)).sum();
        let actual = blocks(&truncated.long_documents(LongDocuments::Truncate));
        assert_eq!(actual.iter().map(Encoding::len).sum::<usize>(), expected_tokens);
    }
}

/// How many standard deviations a count is from its expectation.
fn deviations(count: u64, total: u64, probability: f64) -> f64 {
    let count = count as f64;
    let total = total as f64;
    (count - total * probability) / (total * probability * (1.0 - probability)).sqrt()
}

#[test]
fn masking_has_the_shares_that_transformers_has() {
    let case = &reference()["masking"];
    let row: Vec<u32> = list(&case["row"]);
    let mask = MaskedLanguageModel::for_tokenizer(&tokenizer("wordpiece")).unwrap();
    let mut maskable = 0;
    let mut chosen = 0;
    let mut masked = 0;
    let mut changed = 0;
    let mut kept = 0;
    for index in 0..2000 {
        let mut encoding = Encoding::from_ids(row.clone());
        let labels = mask.apply(&mut encoding, &mut SampleRng::new(1, 0, index)).unwrap();
        for ((&before, &after), &label) in row.iter().zip(&encoding.ids).zip(&labels) {
            let special = before <= 4;
            maskable += u64::from(!special);
            if label == IGNORE_INDEX {
                assert_eq!(before, after);
                continue;
            }
            assert!(!special, "a special token was chosen");
            assert_eq!(label, before as i32);
            chosen += 1;
            masked += u64::from(after == 4);
            changed += u64::from(after != 4 && after != before);
            kept += u64::from(after == before);
        }
    }
    let expected_count = |name: &str| case[name].as_u64().unwrap();
    assert_eq!(maskable, expected_count("maskable"));
    // A random token is the mask token or the original one, each once in the vocabulary.
    let random = 0.1 / 300.0;
    for (actual, expected, total, expected_total, probability) in [
        (chosen, expected_count("chosen"), maskable, expected_count("maskable"), 0.15),
        (masked, expected_count("masked"), chosen, expected_count("chosen"), 0.8 + random),
        (changed, expected_count("changed"), chosen, expected_count("chosen"), 0.1 - 2.0 * random),
        (kept, expected_count("kept"), chosen, expected_count("chosen"), 0.1 + random),
    ] {
        for (count, total) in [(actual, total), (expected, expected_total)] {
            let deviations = deviations(count, total, probability);
            assert!(deviations.abs() < 4.0, "{count} of {total} at {probability}: {deviations}");
        }
    }
}

#[test]
fn words_are_hidden_whole_or_not_at_all() {
    let tokenizer = tokenizer("wordpiece").words(true);
    let text =
        "Lightning conductors measured thunderstorms, farmers counted hailstones. ".repeat(20);
    let encoding = tokenizer.encode(&text).unwrap();
    let mask =
        MaskedLanguageModel::for_tokenizer(&tokenizer).unwrap().whole_words(true).probability(0.4);
    let mut words = 0;
    let mut hidden = 0;
    for index in 0..50 {
        let labels = mask.apply(&mut encoding.clone(), &mut SampleRng::new(3, 0, index)).unwrap();
        let tokens: Vec<(Option<u32>, bool)> = encoding
            .words
            .iter()
            .zip(&labels)
            .map(|(word, label)| (*word, *label != IGNORE_INDEX))
            .collect();
        assert!(tokens.iter().all(|(word, chosen)| word.is_some() || !chosen));
        for word in tokens.chunk_by(|a, b| a.0 == b.0).filter(|word| word[0].0.is_some()) {
            assert!(word.iter().all(|(_, chosen)| *chosen == word[0].1));
            // This test needs words of several tokens.
            words += u64::from(word.len() > 1);
            hidden += u64::from(word.len() > 1 && word[0].1);
        }
    }
    assert!(words > 1000);
    assert!(deviations(hidden, words, 0.4).abs() < 4.0, "{hidden} of {words}");
    let error =
        mask.apply(&mut Encoding::from_ids(vec![9]), &mut SampleRng::new(0, 0, 0)).unwrap_err();
    assert!(error.to_string().contains("Tokenizer::words"), "{error}");
}

#[test]
fn masks_are_new_in_each_epoch_and_the_same_for_any_number_of_workers() {
    let tokenizer = tokenizer("wordpiece").max_length(24).unwrap();
    let texts: Vec<String> = list(&reference()["packing"]["texts"]);
    let mask = MaskedLanguageModel::for_tokenizer(&tokenizer).unwrap();
    let samples = TokenCollator::new(24, tokenizer.pad_id().unwrap()).masked(mask);
    let read = |workers| -> Vec<Vec<i32>> {
        let data = samples.clone().dataset(tokenizer.tokenize(Memory(texts.clone()))).unwrap();
        let loader = DataLoader::builder(data)
            .batch_size(7)
            .shuffle(true)
            .seed(3)
            .num_workers(workers)
            .build()
            .unwrap();
        let batches: Vec<HostBatch> = loader.epochs(0..2, 0).map(Result::unwrap).collect();
        batches
            .iter()
            .map(|batch| [batch.values::<i32>(0).unwrap(), batch.values(2).unwrap()].concat())
            .collect()
    };
    let expected = read(0);
    for workers in [1, 2, 7] {
        assert_eq!(read(workers), expected, "{workers} workers");
    }
    // The values are sorted, so that only the masks can differ.
    let hidden = |batches: &[Vec<i32>]| {
        let mut labels: Vec<i32> = batches.concat();
        labels.sort_unstable();
        labels
    };
    assert_ne!(hidden(&expected[..5]), hidden(&expected[5..]));
    // Padding is never a label.
    let data = samples.dataset(tokenizer.tokenize(Memory(texts.clone()))).unwrap();
    for (labels, mask) in
        rows::<i32>(&data, "labels").iter().zip(rows::<bool>(&data, "attention_mask"))
    {
        assert!(labels.iter().zip(mask).all(|(label, token)| token || *label == IGNORE_INDEX));
    }
}

#[test]
fn lines_become_batches_through_a_token_file() {
    let folder = tempfile::tempdir().unwrap();
    let text: Vec<String> = list(&reference()["packing"]["texts"]);
    let tokenizer = tokenizer("bpe");
    let end = tokenizer.special_id("<|endoftext|>").unwrap();
    let documents = tokenizer.tokenize(Memory(text));
    let write = |name: &str, threads| {
        let mut writer = TokenFileWriter::create(folder.path().join(name), tokenizer.vocab_size())
            .unwrap()
            .separator(end);
        let mut last_count = 0;
        writer.extend(&documents, threads, |count| last_count = count).unwrap();
        assert_eq!(last_count, 31);
        writer.finish().unwrap()
    };
    let file = write("tokens", 1);
    file.verify().unwrap();
    // The same bytes for any number of threads.
    assert_eq!(
        std::fs::read(write("again", 7).path()).unwrap(),
        std::fs::read(file.path()).unwrap()
    );

    let array = packed_array(&reference()["packing"]);
    assert_eq!(file.document_ends(), array.document_ends());
    let samples = TokenCollator::new(24, end).documents(true).causal(CausalLabels::Shifted);
    let read = |workers| -> Vec<Vec<u8>> {
        let data = samples.clone().dataset(TokenBlocks::new(file.clone(), 24).unwrap()).unwrap();
        let loader = DataLoader::builder(data)
            .batch_size(4)
            .shuffle(true)
            .seed(1)
            .num_workers(workers)
            .build()
            .unwrap();
        let fields = |batch: HostBatch| {
            (0..5).flat_map(|field| batch.field_bytes(field).unwrap().to_vec()).collect()
        };
        loader.epochs(0..2, 0).map(|batch| fields(batch.unwrap())).collect()
    };
    let expected = read(0);
    for workers in [1, 2, 7] {
        assert_eq!(read(workers), expected, "{workers} workers");
    }
    let read_whole = TokenBlocks::new(TokenArray::open(file.path()).unwrap(), 24).unwrap();
    let indexed =
        TokenBlocks::new(IndexedDocuments::new(documents.clone(), Some(end), 2).unwrap(), 24)
            .unwrap();
    let from_file = TokenBlocks::new(file, 24).unwrap();
    let in_memory = TokenBlocks::new(array, 24).unwrap();
    for index in 0..from_file.len() {
        let expected = in_memory.get(index).unwrap();
        assert_eq!(from_file.get(index).unwrap(), expected);
        assert_eq!(read_whole.get(index).unwrap(), expected);
        assert_eq!(indexed.get(index).unwrap(), expected);
    }
    let mut before = 0;
    let lengths = token_lengths(&documents, 1).unwrap();
    let document =
        lengths.iter().take_while(|&&length| (before += length + 1, before <= 3 * 24).1).count();
    assert!(
        from_file.origin(3).ends_with(&format!("tokens, document {document}, block 3")),
        "{}",
        from_file.origin(3)
    );
}

#[test]
fn a_stream_of_lines_gives_the_same_batches_for_any_number_of_workers_and_after_a_pause() {
    let tokenizer = tokenizer("bpe");
    let end = tokenizer.special_id("<|endoftext|>").unwrap();
    let lines: Vec<String> = list(&reference()["packing"]["texts"]);
    let samples = TokenCollator::new(24, end).documents(true).causal(CausalLabels::Shifted);
    let loader = |first_fit, workers, threads| {
        let documents = tokenizer.tokenize(Memory(lines.clone()).shuffle(8, 5));
        let packed = if first_fit {
            PackedStream::first_fit(documents, 24, 4).unwrap()
        } else {
            PackedStream::new(documents, 24).unwrap()
        };
        let data = samples.clone().dataset(packed.separator(end).threads(threads)).unwrap();
        DataLoader::from_stream(data)
            .num_samples(24)
            .batch_size(4)
            .num_workers(workers)
            .build()
            .unwrap()
    };
    let fields = |batch: Result<HostBatch>| -> Vec<u8> {
        let batch = batch.unwrap();
        (0..5).flat_map(|field| batch.field_bytes(field).unwrap().to_vec()).collect()
    };
    for first_fit in [false, true] {
        let expected: Vec<Vec<u8>> = loader(first_fit, 0, 0).epochs(0..2, 0).map(fields).collect();
        assert_eq!(expected.len(), 12);
        assert_ne!(expected[..6], expected[6..]);
        for (workers, threads) in [(1, 0), (2, 0), (7, 0), (0, 2), (2, 3)] {
            let loader = loader(first_fit, workers, threads);
            assert_eq!(
                loader.epochs(0..2, 0).map(fields).collect::<Vec<_>>(),
                expected,
                "{workers} {threads}"
            );
            assert_eq!(
                loader.epochs(0..2, 4).map(fields).collect::<Vec<_>>(),
                expected[4..],
                "{workers} {threads}"
            );
        }
    }
    // The token file of a stream equals that of the same documents by index.
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str| {
        TokenFileWriter::create(folder.path().join(name), tokenizer.vocab_size())
            .unwrap()
            .separator(end)
    };
    let mut by_index = write("index");
    let mut by_stream = write("stream");
    let documents = tokenizer.tokenize(Memory(lines.clone()));
    by_index.extend(&documents, 2, |_| ()).unwrap();
    by_stream.extend_from_stream(&documents, 2, |_| ()).unwrap();
    let bytes = |writer: TokenFileWriter| std::fs::read(writer.finish().unwrap().path()).unwrap();
    assert_eq!(bytes(by_index), bytes(by_stream));
}

#[test]
fn chosen_lengths_are_the_shapes_of_the_batches() {
    let texts: Vec<String> = list(&reference()["packing"]["texts"]);
    let tokens = tokenizer("wordpiece").tokenize(Memory(texts));
    let lengths = token_lengths(&tokens, 2).unwrap();
    let best = choose_boundaries(&lengths, 3).unwrap();
    assert_eq!(best.lengths().len(), 3);
    let samples = TokenCollator::new(best.lengths()[2], 0).causal(CausalLabels::Shifted);
    // Bucket, valid rows, ids, mask, labels.
    type Content = (usize, usize, Vec<i32>, Vec<bool>, Vec<i32>);
    let read = |workers| -> Vec<Content> {
        let buckets = Buckets::new(&lengths, best.lengths()).unwrap();
        let data = samples.clone().dataset(tokens.clone()).unwrap();
        let loader = DataLoader::builder(data).batch_size(4).shuffle(true).seed(2).buckets(buckets);
        let loader = loader.num_workers(workers).build().unwrap();
        let content = |batch: HostBatch| {
            let ids = batch.values(0).unwrap();
            let mask = batch.values(1).unwrap();
            let labels = batch.values(2).unwrap();
            (batch.bucket(), batch.valid(), ids.to_vec(), mask.to_vec(), labels.to_vec())
        };
        loader.epoch(0).map(|batch| content(batch.unwrap())).collect()
    };
    let batches = read(0);
    let mut actual = Vec::new();
    let mut positions = 0;
    for (bucket, valid, ids, mask, labels) in &batches {
        let length = best.lengths()[*bucket];
        assert_eq!(ids.len(), 4 * length);
        positions += valid * length;
        for row in 0..*valid {
            let row = row * length..(row + 1) * length;
            let count = mask[row.clone()].iter().filter(|&&token| token).count();
            assert!(ids[row.clone()][count..].iter().all(|&id| id == 0));
            assert_eq!(labels[row.clone()][..count - 1], ids[row.clone()][1..count]);
            assert!(labels[row.clone()][count - 1..].iter().all(|&label| label == IGNORE_INDEX));
            actual.push(ids[row][..count].iter().map(|&id| id as u32).collect::<Vec<_>>());
        }
    }
    let mut expected: Vec<Vec<u32>> =
        (0..lengths.len()).map(|i| Source::get(&tokens, i).unwrap().ids).collect();
    actual.sort();
    expected.sort();
    assert_eq!(actual, expected);
    // The padding is the expected amount.
    let share = 1.0 - lengths.iter().sum::<usize>() as f64 / positions as f64;
    assert!((share - best.padding_share()).abs() < 1e-12);
    for workers in [1, 2, 7] {
        assert_eq!(read(workers), batches, "{workers} workers");
    }
}

#[test]
fn large_vocabularies_take_four_bytes() {
    let folder = tempfile::tempdir().unwrap();
    for (vocab_size, width) in [(65_536, 2), (65_537, 4)] {
        let last = vocab_size as u32 - 1;
        let mut writer = TokenFileWriter::create(folder.path().join("tokens"), vocab_size).unwrap();
        writer.push([0, last, 1]).unwrap();
        assert!(writer.push([last + 1]).unwrap_err().to_string().contains("not in the vocabulary"));
        let file = writer.finish().unwrap();
        assert_eq!(
            file.path().metadata().unwrap().len(),
            1024 + (3 * width as u64).next_multiple_of(8) + 8
        );
        let mut tokens = [0; 3];
        file.read(0, &mut tokens).unwrap();
        assert_eq!(tokens, [0, last, 1]);
        assert!(file.read(1, &mut tokens).unwrap_err().is_usage());
        // Other readers of the format can read it, and its checksums are valid.
        let (tensors, metadata) = fulmen_nn::safetensors::read(file.path()).unwrap();
        let mut expected = Vec::new();
        for token in [0, last, 1] {
            expected.extend_from_slice(&token.to_le_bytes()[..width]);
        }
        assert_eq!(tensors["tokens"].bytes(), expected);
        assert_eq!(tensors["ends"].to_vec::<u64>().unwrap(), [3]);
        assert_eq!(metadata["vocab_size"], vocab_size.to_string());
    }
}

#[test]
fn damaged_token_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    let mut writer = TokenFileWriter::create(&path, 1000).unwrap();
    (0..40u32).for_each(|document| writer.push((0..document).collect::<Vec<_>>()).unwrap());
    drop(writer.finish().unwrap());
    let sound = std::fs::read(&path).unwrap();
    let open = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let whole = TokenArray::open(&*path);
        let file = TokenFile::open(&path).and_then(|file| file.verify().map(|()| file));
        assert_eq!(whole.is_ok(), file.is_ok());
        file
    };
    open(&sound).unwrap();
    // Truncated at any position, and with any byte changed.
    for length in (0..sound.len()).step_by(7).chain([7, 8, 1023, 1024, 1025, sound.len() - 1]) {
        let error = open(&sound[..length]).unwrap_err();
        assert!(error.is_file() && error.to_string().contains("tokens"), "{error}");
    }
    for offset in (0..1024).chain((1024..sound.len()).step_by(11)) {
        let mut bytes = sound.clone();
        bytes[offset] ^= 0x10;
        assert!(open(&bytes).unwrap_err().is_file(), "byte {offset}");
    }
    // A token outside the vocabulary is detected even without the checksum.
    let mut bytes = sound.clone();
    bytes[1025] = 0xff;
    std::fs::write(&path, &bytes).unwrap();
    let error = TokenFile::open(&path).unwrap().read(0, &mut [0; 4]).unwrap_err();
    assert!(error.to_string().contains("outside its vocabulary of 1000"), "{error}");
    assert!(open(b"what is this?").unwrap_err().to_string().contains("not a token file"));
    assert!(TokenFile::open(folder.path()).unwrap_err().to_string().contains("this is a folder"));
    // Opening a pipe would wait for a writer.
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert!(TokenFile::open(&pipe).unwrap_err().to_string().contains("not a regular file"));
    assert!(TokenFile::open(folder.path().join("absent")).unwrap_err().is_not_found());
}

#[test]
fn an_unfinished_token_file_leaves_the_old_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    std::fs::write(&path, "what was there").unwrap();
    let mut writer = TokenFileWriter::create(&path, 10).unwrap();
    writer.push([1, 2]).unwrap();
    drop(writer);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "what was there");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    // Missing folders are created; a file in place of a folder is an error.
    assert!(TokenFileWriter::create(path.join("tokens"), 10).unwrap_err().is_file());
    TokenFileWriter::create(folder.path().join("a/folder/tokens"), 10).unwrap();
    assert!(folder.path().join("a/folder").is_dir());
}

#[test]
fn what_does_not_fit_says_what_to_do() {
    let wordpiece = tokenizer("wordpiece");
    let check = |error: fulmen_data::Error, parts: &[&str]| {
        let message = error.to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    };
    check(Tokenizer::from_file("absent/tokenizer.json").unwrap_err(), &["absent/tokenizer.json"]);
    check(
        Tokenizer::from_file(path("text.json")).unwrap_err(),
        &["text.json", "not a tokenizer.json"],
    );
    check(Tokenizer::from_bytes(b"\xff").unwrap_err(), &["not a tokenizer.json"]);
    let mut random: Value =
        serde_json::from_slice(&std::fs::read(path("text_bpe.json")).unwrap()).unwrap();
    random["model"]["dropout"] = Value::from(0.1);
    check(
        Tokenizer::from_bytes(random.to_string().as_bytes()).unwrap_err(),
        &["dropout of 0.1", "null"],
    );
    check(
        wordpiece.clone().max_length(3).unwrap_err(),
        &["text_wordpiece.json", "3 special tokens", "choose at least 4"],
    );
    check(
        wordpiece.special_id("<pad>").unwrap_err(),
        &["\"<pad>\"", "[PAD], [UNK], [CLS], [SEP], [MASK]"],
    );
    check(
        MaskedLanguageModel::for_tokenizer(&tokenizer("bpe")).unwrap_err(),
        &["[MASK]", "text_bpe.json"],
    );

    let texts = wordpiece.tokenize(Memory(vec!["one", "two, and three, and four"]));
    let data = TokenCollator::new(6, 0).dataset(texts.clone()).unwrap();
    check(
        HostBatch::collate(&data, &[0, 1]).unwrap_err(),
        &["sample 1", "more than the 6", "Tokenizer::max_length"],
    );
    let cut = TokenCollator::new(6, 0).truncation(Side::Right).dataset(texts.clone()).unwrap();
    assert_eq!(rows::<bool>(&cut, "attention_mask")[1], [true; 6]);
    check(TokenCollator::new(0, 0).dataset(texts.clone()).unwrap_err(), &["samples of 0 tokens"]);
    let mask = MaskedLanguageModel::new(4, 300, []).replacements(0.8, 0.3);
    check(
        TokenCollator::new(6, 0).masked(mask).dataset(texts.clone()).unwrap_err(),
        &["0.8", "0.3", "at most 1"],
    );
    check(
        TokenBlocks::new(TokenArray::new(9).unwrap(), 4).unwrap_err(),
        &["only 0 tokens", "block of 4"],
    );
    let write =
        |encoding, sample: &mut Sample<'_>| TokenCollator::new(6, 0).write(encoding, sample, 0);
    let data = Source::into_dataset(texts, Vec::new(), write);
    check(HostBatch::collate(&data, &[0]).unwrap_err(), &["field 0", "there is none"]);
}

#[test]
fn a_document_that_cannot_be_read_is_missing_from_the_blocks() {
    struct BrokenStream;
    impl Stream for BrokenStream {
        type Item = Vec<u32>;
        fn len(&self) -> Option<usize> {
            None
        }
        fn items(&self, _: u64) -> Result<Items<Vec<u32>>> {
            let item = |i| match i {
                3 => Err(fulmen_data::Error::new("document 3 is gone")),
                _ => Ok(StreamItem { index: i, origin: String::new(), item: vec![i as u32; 5] }),
            };
            Ok(Box::new((0..9).map(item)))
        }
        fn fingerprint(&self, _: &mut Fingerprint) -> Result<()> {
            Ok(())
        }
    }
    for threads in [0, 1, 3] {
        for stream in [
            PackedStream::new(BrokenStream, 4).unwrap(),
            PackedStream::first_fit(BrokenStream, 4, 2).unwrap(),
        ] {
            let items: Vec<_> = stream.threads(threads).items(0).unwrap().collect();
            let errors: Vec<String> =
                items.iter().filter_map(|item| Some(item.as_ref().err()?.to_string())).collect();
            assert!(
                matches!(&errors[..], [one] if one.contains("document 3 is gone")),
                "{errors:?}"
            );
            let tokens: Vec<u32> =
                items.into_iter().flatten().flat_map(|block| block.item.ids).collect();
            for document in [0, 1, 2, 4, 5, 6, 7, 8] {
                assert_eq!(tokens.iter().filter(|&&token| token == document).count(), 5);
            }
            assert!(!tokens.contains(&3));
        }
    }
}

#[test]
fn a_document_that_changes_after_it_was_counted_is_named() {
    struct GrowingSource(AtomicUsize);
    impl Source for GrowingSource {
        type Item = Vec<u32>;
        fn len(&self) -> usize {
            1
        }
        fn get(&self, _: usize) -> Result<Vec<u32>> {
            Ok(vec![7; 3 + self.0.fetch_add(1, Ordering::Relaxed)])
        }
        fn origin(&self, _: usize) -> String {
            "growing.txt".to_owned()
        }
        fn fingerprint(&self, _: &mut Fingerprint) -> Result<()> {
            Ok(())
        }
    }
    let tokens = IndexedDocuments::new(GrowingSource(AtomicUsize::new(0)), None, 1).unwrap();
    let error = tokens.read(0, &mut [0; 2]).unwrap_err().to_string();
    assert!(error.contains("growing.txt: 4 tokens, but 3"), "{error}");
}

#[test]
fn lengths_and_fingerprints() {
    let bpe = tokenizer("bpe");
    let texts = Memory(list::<String>(&reference()["packing"]["texts"]));
    let tokens = bpe.tokenize(texts.clone());
    let lengths: Vec<usize> =
        (0..31).map(|index| Source::get(&tokens, index).unwrap().len()).collect();
    for threads in [0, 1, 2, 7] {
        assert_eq!(token_lengths(&tokens, threads).unwrap(), lengths);
    }
    let fingerprint = |tokenizer: &Tokenizer, samples: TokenCollator| {
        let mut fingerprint = Fingerprint::new();
        samples
            .dataset(tokenizer.tokenize(texts.clone()))
            .unwrap()
            .fingerprint(&mut fingerprint)
            .unwrap();
        fingerprint.to_string()
    };
    let first = fingerprint(&bpe, TokenCollator::new(64, 0));
    assert_eq!(first, fingerprint(&tokenizer("bpe"), TokenCollator::new(64, 0)));
    for other in [
        fingerprint(&bpe, TokenCollator::new(65, 0)),
        fingerprint(&bpe, TokenCollator::new(64, 0).documents(true)),
        fingerprint(&bpe.clone().max_length(9).unwrap(), TokenCollator::new(64, 0)),
        fingerprint(&tokenizer("wordpiece"), TokenCollator::new(64, 0)),
    ] {
        assert_ne!(first, other);
    }
}

#[test]
fn texts_of_a_type_of_the_users_need_a_version_in_a_cache() {
    #[derive(serde::Deserialize)]
    struct Review {
        text: String,
    }
    impl TextInput for Review {
        fn encode(&self, tokenizer: &Tokenizer) -> Result<Encoding> {
            tokenizer.encode(&self.text.to_lowercase())
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("x.jsonl"), "{\"text\": \"One\"}\n").unwrap();
    std::fs::write(path("x.txt"), "one\n").unwrap();
    let tokenizer = tokenizer("bpe");
    let samples = TokenCollator::new(8, 0);
    let reviews = || JsonLines::open(path("x.jsonl")).unwrap().typed::<Review>();
    let data = || samples.clone().dataset(tokenizer.tokenize(reviews())).unwrap();
    let error = data().cache(path("cache")).open().unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("Review"), "{error}");
    data().cache(path("cache")).version("1").open().unwrap();
    let lines = samples
        .clone()
        .dataset(tokenizer.tokenize(TextFile::open(path("x.txt")).unwrap()))
        .unwrap();
    lines.cache(path("cache")).open().unwrap();
}

#[test]
fn the_bytes_of_tokens_are_those_in_which_transformers_finds_stop_strings() {
    let expected: Value =
        serde_json::from_slice(&std::fs::read(path("token_bytes.json")).unwrap()).unwrap();
    for (name, expected) in expected.as_object().unwrap() {
        let tokenizer = tokenizer(name);
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let actual: Vec<Option<String>> =
            tokenizer.token_bytes().unwrap().into_iter().map(|bytes| bytes.map(hex)).collect();
        let expected: Vec<Option<String>> = list(expected);
        assert_eq!(actual.len(), expected.len(), "{name}");
        for (id, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
            assert_eq!(actual, expected, "{name}: {:?}", tokenizer.token(id as u32));
        }
    }
}

#[test]
fn a_tokenizer_that_does_not_say_the_texts_of_its_tokens_has_no_bytes() {
    let tokenizer = |decoder: &str| {
        let file = format!(
            r#"{{"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "added_tokens": [],
            "pre_tokenizer": {{"type": "Whitespace"}}, "post_processor": null, "decoder": {decoder},
            "model": {{"type": "WordLevel", "vocab": {{"[UNK]": 0, "thunder": 1}}, "unk_token": "[UNK]"}}}}"#
        );
        Tokenizer::from_bytes(file.as_bytes()).unwrap().token_bytes().unwrap_err().to_string()
    };
    let text = tokenizer("null");
    assert!(text.contains("the tokenizer: the file has no decoder"), "{text}");
    let text = tokenizer(r#"{"type": "WordPiece", "prefix": "__", "cleanup": true}"#);
    assert!(text.contains("does not keep the text \"abcdef\""), "{text}");
}
