//! Conversations as samples in which only answers have labels.

use fulmen_data::{HostBatch, Source};
use fulmen_tables::TextFile;
use fulmen_text::{
    CausalLabels, ChatArray, ChatTemplate, ChatTokens, Encoding, MaskedLanguageModel,
    PackedDocuments, Side, TokenBlocks, TokenCollator, TokenStore, Tokenizer,
};

/// A template that marks no answers.
const PLAIN: &str =
    "{% for message in messages %}<{{ message.role }}>{{ message.content }};{% endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}";

/// The same, with answers marked.
const MARKED: &str = "{% for message in messages %}<{{ message.role }}>
{%- if message.role == 'assistant' %}{% generation %}{{ message.content }};{% endgeneration %}
{%- else %}{{ message.content }};{% endif %}{% endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}";

fn tokenizer() -> Tokenizer {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reference/text_bpe.json");
    Tokenizer::from_file(file).unwrap()
}

fn chat(ids: &[u32], generation: &[u8]) -> ChatTokens {
    let generation = generation.iter().map(|&mark| mark == 1).collect();
    ChatTokens { ids: ids.to_vec(), generation }
}

/// What the labels of a block say, as text.
fn learned(encoding: &Encoding, tokenizer: &Tokenizer) -> String {
    let targets = encoding.ids.iter().zip(&encoding.targets);
    let ids: Vec<u32> = targets.filter(|(_, target)| **target).map(|(&id, _)| id).collect();
    tokenizer.decode(&ids, false).unwrap()
}

#[test]
fn only_answers_have_labels_with_and_without_generation_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chats.jsonl");
    let lines = [
        r#"{"messages": [{"role": "user", "content": "The storm"}, {"role": "assistant", "content": "is near"}, {"role": "user", "content": "The rain"}, {"role": "assistant", "content": "is far"}]}"#,
        r#"[{"role": "user", "content": "The sun"}, {"role": "assistant", "content": "is up"}]"#,
        r#"{"prompt": [{"role": "user", "content": "The sun"}], "completion": [{"role": "assistant", "content": "is down"}]}"#,
        r#"{"messages": [{"role": "user", "content": "The rain"}]}"#,
    ];
    std::fs::write(&file, lines.join("\n")).unwrap();
    let tokenizer = tokenizer();
    for source in [PLAIN, MARKED] {
        let template = ChatTemplate::from_source(source).unwrap();
        let mut chats = ChatArray::new(tokenizer.vocab_size(), 200).unwrap();
        chats.extend(&TextFile::open(&file).unwrap(), &template, &tokenizer, 2).unwrap();
        let counts = chats.counts().clone();
        assert_eq!((counts.conversations, counts.without_answer, counts.truncated), (3, 1, 0));
        let blocks = PackedDocuments::new(chats, 400).unwrap();
        let block = blocks.get(0).unwrap();
        assert_eq!(learned(&block, &tokenizer), "is near;is far;is up;is down;");
        assert_eq!(block.starts.len(), 2);
    }
}

#[test]
fn a_bad_line_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chats.jsonl");
    let tokenizer = tokenizer();
    let error = |line: &str| {
        std::fs::write(&file, format!("[{{\"role\": \"user\", \"content\": \"a\"}}]\n{line}\n"))
            .unwrap();
        let template = ChatTemplate::from_source(PLAIN).unwrap();
        let mut chats = ChatArray::new(tokenizer.vocab_size(), 200).unwrap();
        let lines = TextFile::open(&file).unwrap();
        chats.extend(&lines, &template, &tokenizer, 1).unwrap_err().to_string()
    };
    let not_json = error("{");
    assert!(not_json.contains("chats.jsonl") && not_json.contains("not JSON"), "{not_json}");
    assert!(
        error(r#"{"text": "a"}"#).contains("with `messages`, or with `prompt` and `completion`")
    );
    let text = error(r#"{"prompt": "a", "completion": "b"}"#);
    assert!(text.contains("`prompt` is string, expected a list of messages"), "{text}");
}

#[test]
fn answers_that_a_template_hides_are_refused() {
    // The last message is written otherwise than the same message in the middle.
    let template = ChatTemplate::from_source(
        "{% for message in messages %}{{ message.content }}{{ '!' if loop.last else ';' }}{% endfor %}",
    )
    .unwrap();
    let example = r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]"#;
    let error = template.render_example(example).unwrap_err().to_string();
    assert!(error.contains("the answer in message 1 cannot be found"), "{error}");
    assert!(error.contains("put {% generation %}"), "{error}");
}

#[test]
fn long_conversations_are_cut_and_those_without_an_answer_left_out() {
    let mut chats = ChatArray::new(100, 3).unwrap();
    chats.push(&chat(&[1, 2, 3, 4], &[0, 1, 0, 1])).unwrap();
    chats.push(&chat(&[5, 6, 7, 8], &[0, 0, 0, 1])).unwrap();
    chats.push(&chat(&[9], &[1])).unwrap();
    chats.push(&chat(&[], &[])).unwrap();
    assert_eq!(
        chats.counts().to_string(),
        "1 conversation, of which 1 was cut at 3 tokens; 3 were left out without an answer; 3 tokens, of which 1 is one of \
         an answer"
    );
    assert_eq!(chats.num_tokens(), 3);
    assert!(chats.push(&chat(&[100, 1], &[0, 1])).is_err());
    assert!(chats.push(&chat(&[1, 1], &[0])).is_err());
    assert_eq!(chats.num_tokens(), 3);
    assert!(chats.targets(2, 2).is_err());
    assert!(ChatArray::new(100, 1).is_err());
}

#[test]
fn labels_are_those_of_answers_in_blocks_and_in_truncated_ones() {
    let mut chats = ChatArray::new(100, 10).unwrap();
    chats.push(&chat(&[1, 2, 3, 4], &[0, 1, 0, 1])).unwrap();
    chats.push(&chat(&[5, 6, 7], &[0, 1, 1])).unwrap();
    let labels = |length: usize, labels: CausalLabels| {
        let samples = TokenCollator::new(length, 0).causal(labels);
        let data = samples.dataset(TokenBlocks::new(chats.clone(), length).unwrap()).unwrap();
        HostBatch::collate(&data, &[0]).unwrap().values::<i32>(2).unwrap().to_vec()
    };
    assert_eq!(labels(7, CausalLabels::Shifted), [2, -100, 4, -100, 6, 7, -100]);
    assert_eq!(labels(7, CausalLabels::Same), [-100, 2, -100, 4, -100, 6, 7]);
    // The token after the block is its last label, if it is learned.
    assert_eq!(labels(3, CausalLabels::Shifted), [2, -100, 4]);
    assert_eq!(labels(4, CausalLabels::Shifted), [2, -100, 4, -100]);

    let mut block = TokenBlocks::new(chats.clone(), 7).unwrap().get(0).unwrap();
    block.truncate(4, Side::Right);
    assert_eq!((block.next, block.starts.len(), block.targets.len()), (None, 0, 4));
    let mut block = TokenBlocks::new(chats.clone(), 7).unwrap().get(0).unwrap();
    block.truncate(3, Side::Left);
    assert_eq!(block.targets, [false, true, true]);

    let masked = MaskedLanguageModel::new(1, 100, []);
    let samples = TokenCollator::new(7, 0).masked(masked);
    let data = samples.dataset(TokenBlocks::new(chats, 7).unwrap()).unwrap();
    let error = HostBatch::collate(&data, &[0]).unwrap_err().to_string();
    assert!(error.contains("use TokenCollator::causal"), "{error}");
}

#[test]
fn preferences_share_their_prompt() {
    let template = ChatTemplate::from_source(PLAIN).unwrap();
    let explicit = r#"{"prompt": [{"role": "user", "content": "a"}], "chosen": [{"role": "assistant", "content": "b"}],
        "rejected": [{"role": "assistant", "content": "c"}]}"#;
    let implicit = r#"{"chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        "rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "c"}]}"#;
    for json in [explicit, implicit] {
        let pair = template.render_preference(json).unwrap();
        assert_eq!(pair.chosen.text, "<user>a;<assistant>b;");
        assert_eq!(pair.rejected.text, "<user>a;<assistant>c;");
        assert_eq!((pair.chosen.generation.len(), &pair.chosen.generation[0]), (1, &(19..21)));
        assert_eq!((pair.rejected.generation.len(), &pair.rejected.generation[0]), (1, &(19..21)));
    }
    let error = |json: &str| template.render_preference(json).unwrap_err().to_string();
    assert!(error(r#"{"chosen": []}"#).contains("with `chosen` and `rejected`"));
    let equal = r#"{"chosen": [{"role": "user", "content": "a"}], "rejected": [{"role": "user", "content": "a"}]}"#;
    assert!(error(equal).contains("are equal"));
    let different = equal.replacen("\"a\"", "\"b\"", 1);
    assert!(error(&different).contains("has no prompt"));
}
