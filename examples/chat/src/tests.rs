//! The program on a tiny folder, and packed conversations against the conversations alone.

use fulmen::data::HostBatch;
use fulmen::data::text::ByteLevelBpe;
use fulmen::models::decoder::Config;
use fulmen::nn::loss::CrossEntropyLoss;

use super::*;

const TEMPLATE: &str = "{% for message in messages %}<|{{ message.role }}|>
{%- if message.role == 'assistant' %}{% generation %}{{ message.content }}<|end|>{% endgeneration %}
{%- else %}{{ message.content }}<|end|>{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}";

/// A question and its answers, the second of which is wrong.
fn question(number: usize) -> [String; 3] {
    let one = number % 7;
    let two = number % 5;
    [format!("{one} and {two}"), format!("{}", one + two), "I do not know".to_owned()]
}

/// Writes a tiny model with its tokenizer and template.
fn write_model(folder: &Path) {
    let corpus: Vec<String> = (0..40).flat_map(question).collect();
    let special = ["<|user|>", "<|assistant|>", "<|end|>"];
    let tokenizer = ByteLevelBpe::new(280).special_tokens(special).train(&corpus).unwrap();
    let model = Decoder::new(Config {
        vocab_size: tokenizer.vocab_size(),
        hidden_size: 16,
        intermediate_size: 32,
        num_hidden_layers: 1,
        num_attention_heads: 2,
        ..Config::default()
    })
    .unwrap();
    model.initialize(0);
    model.save_pretrained(folder).unwrap();
    tokenizer.save(folder.join("tokenizer.json")).unwrap();
    std::fs::write(folder.join("chat_template.jinja"), TEMPLATE).unwrap();
    std::fs::write(folder.join("tokenizer_config.json"), r#"{"eos_token": "<|end|>"}"#).unwrap();
}

/// Writes 40 lines.
fn write_lines(file: &Path, line: impl Fn([String; 3]) -> String) {
    let lines: Vec<String> = (0..40).map(|number| line(question(number))).collect();
    std::fs::write(file, lines.join("\n")).unwrap();
}

fn conversation([question, answer, _]: [String; 3]) -> String {
    format!(
        r#"{{"messages": [{{"role": "user", "content": "{question}"}}, {{"role": "assistant", "content": "{answer}"}}]}}"#
    )
}

fn pair([question, answer, wrong]: [String; 3]) -> String {
    format!(
        r#"{{"prompt": [{{"role": "user", "content": "{question}"}}], "chosen": [{{"role": "assistant", "content": "{answer}"}}], "rejected": [{{"role": "assistant", "content": "{wrong}"}}]}}"#
    )
}

/// Runs the program on a tiny model, and returns what it saved.
fn run(line: impl Fn([String; 3]) -> String, arguments: &[&str]) -> (tempfile::TempDir, Decoder) {
    let folder = tempfile::tempdir().unwrap();
    let [from, data, to] = ["from", "data.jsonl", "to"].map(|name| folder.path().join(name));
    write_model(&from);
    write_lines(&data, line);
    let paths = [("--from", &from), ("--data", &data), ("--save-to", &to)];
    let paths = paths.map(|(flag, path)| [flag, path.to_str().unwrap()]).concat();
    let small = ["--fast-dev-run", "--max-length", "32", "--batch-size", "2"];
    let all = [&["chat"][..], &paths, &small, arguments].concat();
    assert_eq!(cli::main_from::<Args>(all), ExitCode::SUCCESS);
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        assert!(to.join(name).is_file(), "{name}");
    }
    let saved = Decoder::from_folder(&to).unwrap();
    (folder, saved)
}

/// The sum of the changes of all weights.
fn change(folder: &tempfile::TempDir, saved: &Decoder) -> f64 {
    let before = Decoder::from_folder(folder.path().join("from")).unwrap();
    let weights = before.parameters().into_iter().zip(saved.parameters());
    let changes =
        weights.map(|((_, before), (_, after))| (after.get() - before.get()).abs().sum_all());
    changes.reduce(|sum, change| sum + change).unwrap().eval().unwrap().to_f64()[0]
}

#[test]
fn all_weights_learn_from_conversations() {
    let (folder, saved) = run(conversation, &["--learning-rate", "0.01"]);
    assert!(change(&folder, &saved) > 1e-4);
}

#[test]
fn updates_learn_from_preferences() {
    let folder = tempfile::tempdir().unwrap();
    let adapter = folder.path().join("adapter");
    let arguments = [
        "--dpo",
        "--lora",
        "2",
        "--learning-rate",
        "0.1",
        "--save-adapter",
        adapter.to_str().unwrap(),
    ];
    let (folder, saved) = run(pair, &arguments);
    assert!(change(&folder, &saved) > 1e-5);
    assert!(adapter.join("adapter_model.safetensors").is_file());
}

#[test]
fn packed_conversations_have_the_logits_and_losses_of_the_conversations_alone() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_model(folder);
    write_lines(&folder.join("data.jsonl"), conversation);
    let model = Decoder::from_folder(folder).unwrap();
    let lines = Lines::open(&folder.join("data.jsonl"), Split::Validation).unwrap();
    let template = ChatTemplate::from_folder(folder).unwrap();
    let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json")).unwrap();
    let length = 64;
    let data =
        samples::conversations(&lines, &template, &tokenizer, tokenizer.vocab_size(), length)
            .unwrap();
    assert_eq!(data.len(), 1);
    let batch = HostBatch::collate(&*data, &[0]).unwrap();
    let field = |index: usize| batch.values::<i32>(index).unwrap().to_vec();
    let tensor = |values: &[i32]| Tensor::from_slice(values, [1, values.len()]);
    let [ids, documents, positions, labels] = [0, 2, 3, 4].map(field);
    let loss = CrossEntropyLoss::new().ignore_index(-100).reduction(Reduction::None);
    let packed = model.forward_packed(tensor(&ids), tensor(&documents), tensor(&positions));
    let losses = loss.forward(&packed, tensor(&labels));

    let mut distance = Tensor::zeros(DType::F32, []);
    let mut answers = 0;
    for document in 1..=4 {
        let places: Vec<usize> =
            (0..length).filter(|&place| documents[place] == document).collect();
        let first = places[0];
        let last = places[places.len() - 1] + 1;
        let alone = model.forward(tensor(&ids[first..last]));
        let loss_alone = loss.forward(&alone, tensor(&labels[first..last]));
        answers += labels[first..last].iter().filter(|&&label| label != -100).count();
        let length = last - first;
        let of_logits = (packed.narrow(1, first, length) - alone).abs().max([0, 1, 2]);
        let of_losses = (losses.narrow(1, first, length) - loss_alone).abs().max([0, 1]);
        distance = distance.maximum(of_logits).maximum(of_losses);
    }
    // Each answer is one or two tokens and the end; the template's markers have no labels.
    assert!((8..=12).contains(&answers), "{answers}");
    let distance = distance.eval().unwrap().to_f64()[0];
    assert!(distance < 1e-5, "{distance}");
}
