//! Chat templates, compared with transformers (`reference/chat.py`).

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use fulmen_text::{Chat, ChatTemplate, Tokenizer};
use serde_json::Value;

fn reference(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(name)
}

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).unwrap();
}

const HELLO: &str = r#"[{"role": "user", "content": "Hello"}]"#;

/// A case's conversation with the arguments of `apply_chat_template`.
fn chat(case: &Value) -> Chat {
    // Friday, 26 July 2024, 15:04:05.
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_722_006_245);
    let mut chat = Chat::from_json(case["chat"].as_str().unwrap()).unwrap().now(now);
    let arguments = case["arguments"].as_str().unwrap();
    let ordered: minijinja::Value = serde_json::from_str(arguments).unwrap();
    for name in ordered.try_iter().unwrap() {
        let value = ordered.get_item(&name).unwrap();
        chat = match name.as_str().unwrap() {
            "add_generation_prompt" => chat.add_generation_prompt(value.is_true()),
            "continue_final_message" => chat.continue_final_message(value.is_true()),
            "tools" => chat.tools(value).unwrap(),
            "documents" => chat.documents(value).unwrap(),
            name => chat.variable(name, value).unwrap(),
        };
    }
    chat
}

/// What differs from transformers in a case.
fn difference(template: &ChatTemplate, tokenizer: &Tokenizer, case: &Value) -> Option<String> {
    let chat = chat(case);
    let rendered = template.render(&chat);
    let (rendered, expected) = match (rendered, case["text"].as_str()) {
        (Err(_), None) => return None,
        (Err(error), Some(_)) => return Some(error.to_string()),
        (Ok(rendered), None) => {
            return Some(format!("{:?}, but transformers: {}", rendered.text, case["error"]));
        }
        (Ok(rendered), Some(expected)) => (rendered, expected),
    };
    if rendered.text != expected {
        return Some(format!("{:?}\ntransformers: {expected:?}", rendered.text));
    }
    let ids = case["ids"].as_array()?;
    let tokens = rendered.tokenize(tokenizer).unwrap();
    let ids: Vec<u64> = ids.iter().map(|id| id.as_u64().unwrap()).collect();
    let masks = case["assistant_masks"].as_array().unwrap();
    let assistant: Vec<bool> = masks.iter().map(|mask| mask.as_u64() == Some(1)).collect();
    let has_blocks = template.has_generation_blocks(&chat).unwrap();
    if !tokens.ids.iter().map(|&id| u64::from(id)).eq(ids) {
        return Some("other tokens".to_owned());
    }
    (has_blocks && tokens.generation != assistant)
        .then(|| format!("mask {:?}, transformers: {assistant:?}", tokens.generation))
}

/// The cases of all templates in a folder that differ from transformers.
fn differences(folder: &Path, expected: &Path) -> (usize, Vec<String>) {
    let expected: Value = serde_json::from_slice(&std::fs::read(expected).unwrap()).unwrap();
    let tokenizer = Tokenizer::from_file(reference("text_bpe.json")).unwrap();
    let mut found = Vec::new();
    let mut count = 0;
    for (name, cases) in expected.as_object().unwrap() {
        let source = std::fs::read_to_string(folder.join(name)).unwrap();
        let template = match ChatTemplate::from_source(&source) {
            Ok(template) => template,
            Err(error) => {
                found.push(format!("{name}: {error}"));
                continue;
            }
        };
        let template = template
            .special_token("bos_token", "<|endoftext|>")
            .special_token("eos_token", "<|endoftext|>");
        for (number, case) in cases.as_array().unwrap().iter().enumerate() {
            count += 1;
            let difference = difference(&template, &tokenizer, case);
            found.extend(difference.map(|text| format!("{name}, case {number}: {text}")));
        }
    }
    (count, found)
}

#[test]
fn texts_tokens_and_masks_are_those_of_transformers() {
    let (count, found) = differences(&reference("chat"), &reference("chat.json"));
    assert!(found.is_empty(), "{}", found.join("\n\n"));
    assert_eq!(count, 130);
}

#[test]
#[ignore = "a folder of templates that others wrote: python crates/text/tests/reference/chat.py FOLDER, then \
            FULMEN_CHAT_TEMPLATES=FOLDER cargo test -p fulmen-text --test it -- --ignored published_templates"]
fn published_templates_render_as_in_transformers() {
    let folder = PathBuf::from(std::env::var("FULMEN_CHAT_TEMPLATES").unwrap());
    let (count, found) = differences(&folder, &folder.join("chat.json"));
    println!("{count} cases, {} differ", found.len());
    assert!(found.is_empty(), "{}", found.join("\n\n"));
}

#[test]
fn a_folder_has_its_template_where_transformers_looks_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let text = |chat: Chat| ChatTemplate::from_folder(folder)?.render(&chat).map(|chat| chat.text);
    let hello = || Chat::from_json(HELLO).unwrap();

    let error = text(hello()).unwrap_err().to_string();
    assert!(error.contains("the folder has no chat template"), "{error}");

    write(folder, "special_tokens_map.json", r#"{"eos_token": "</a>", "bos_token": "<a>"}"#);
    write(
        folder,
        "tokenizer_config.json",
        r#"{"eos_token": {"content": "</b>", "lstrip": false}, "pad_token": null, "chat_template": "{{ bos_token }}1{{ eos_token }}"}"#,
    );
    assert_eq!(text(hello()).unwrap(), "<a>1</b>");

    write(
        folder,
        "tokenizer_config.json",
        r#"{"chat_template": [{"name": "default", "template": "2"}, {"name": "tool_use", "template": "3"}, {"name": "rag", "template": "4"}]}"#,
    );
    assert_eq!(text(hello()).unwrap(), "2");
    assert_eq!(text(hello().tools([1]).unwrap()).unwrap(), "3");
    assert_eq!(text(hello().template("rag")).unwrap(), "4");
    let error = text(hello().template("none")).unwrap_err().to_string();
    assert!(error.contains("named \"none\"; there are default, rag, tool_use"), "{error}");

    write(folder, "chat_template.jinja", "5\r\n{{ 6 }}\n");
    std::fs::create_dir(folder.join("additional_chat_templates")).unwrap();
    write(&folder.join("additional_chat_templates"), "long.jinja", "7");
    assert_eq!(text(hello()).unwrap(), "5\n6");
    assert_eq!(text(hello().template("long")).unwrap(), "7");
}

#[test]
fn errors_name_the_file_and_the_line_of_the_template() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let error = |source: &str| {
        write(folder, "chat_template.jinja", source);
        let template = ChatTemplate::from_folder(folder);
        let error = template.and_then(|template| template.render(&Chat::from_json(HELLO).unwrap()));
        let error = error.unwrap_err().to_string();
        error.replace(&folder.display().to_string(), "FOLDER")
    };
    let file = "FOLDER/chat_template.jinja";
    let refused = "\n{{ raise_exception('no ' + messages[0].role) }}";
    assert_eq!(
        error(refused),
        format!("{file}, line 2: the template refuses the conversation: no user")
    );
    let unclosed = error("\n\n{% if a %}");
    assert!(unclosed.starts_with(&format!("{file}, line 3: ")), "{unclosed}");
    let time = error("{{ strftime_now('%Y') }}");
    assert!(time.contains("line 1: the template asks for the time"), "{time}");
    let undefined = error("{{ messages[3].role }}");
    assert!(undefined.contains("line 1: undefined value"), "{undefined}");
    let cut = error("{% set x %}{% generation %}ab{% endgeneration %}{% endset %}{{ x[:2] }}");
    assert!(cut.contains("cuts the text of a `{% generation %}` block"), "{cut}");
}

#[test]
fn conversations_that_are_none_are_refused() {
    let error = |json: &str| Chat::from_json(json).unwrap_err().to_string();
    assert!(error("[").contains("a conversation is not JSON"));
    assert!(error("[]").contains("has no messages"));
    assert!(error("{}").contains("an object with `messages`"));
    assert!(
        error(r#"{"messages": "Hello"}"#).contains("the messages of a conversation are string")
    );
    assert!(error(r#"[{}, 3]"#).contains("message 1 of a conversation is number"));
    assert!(error("[{\"role\": \"\u{fdd0}\"}]").contains("the noncharacter U+FDD0"));

    let template = ChatTemplate::from_source("{{ messages[0].content[:9] }}").unwrap();
    let error = |chat: Chat| template.render(&chat).unwrap_err().to_string();
    let hello = Chat::from_json(HELLO).unwrap().continue_final_message(true);
    assert!(error(hello.clone().add_generation_prompt(true)).contains("rendered with both"));
    assert!(error(hello).contains("the template does not write the end of it"));
    let calls = Chat::from_json(r#"[{"role": "assistant", "content": null}]"#).unwrap();
    assert!(error(calls.continue_final_message(true)).contains("no text in `content`"));
}
