//! The encodings that are known by name: their patterns, and their special tokens.

use super::Tiktoken;

/// The names, for messages.
pub(super) const NAMES: &str =
    "r50k_base, gpt2, p50k_base, p50k_edit, cl100k_base, o200k_base, llama3, qwen";

/// GPT-2's words.
const GPT2: &str = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// GPT-4's and Llama 3's words, with numbers of at most three digits.
const CL100K: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// As GPT-4's, with single digits.
const QWEN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// GPT-4o's words, which end where an uppercase letter follows a lowercase one.
const O200K: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

const END: &str = "<|endoftext|>";

pub(super) fn named(name: &str) -> Option<Tiktoken> {
    let encoding = match name {
        "r50k_base" | "gpt2" => Tiktoken::new(GPT2).special_token(END, 50256),
        "p50k_base" => Tiktoken::new(GPT2).special_token(END, 50256),
        "p50k_edit" => Tiktoken::new(GPT2)
            .special_token(END, 50256)
            .special_token("<|fim_prefix|>", 50281)
            .special_token("<|fim_middle|>", 50282)
            .special_token("<|fim_suffix|>", 50283),
        "cl100k_base" => Tiktoken::new(CL100K)
            .special_token(END, 100_257)
            .special_token("<|fim_prefix|>", 100_258)
            .special_token("<|fim_middle|>", 100_259)
            .special_token("<|fim_suffix|>", 100_260)
            .special_token("<|endofprompt|>", 100_276),
        "o200k_base" => Tiktoken::new(O200K)
            .special_token(END, 199_999)
            .special_token("<|endofprompt|>", 200_018),
        "llama3" => {
            Tiktoken::new(CL100K).following_tokens(llama3_tokens()).first_token("<|begin_of_text|>")
        }
        "qwen" => Tiktoken::new(QWEN).following_tokens(qwen_tokens()).nfc(),
        _ => return None,
    };
    Some(encoding)
}

/// The 256 special tokens of Llama 3.
fn llama3_tokens() -> Vec<String> {
    let reserved = |number: usize| format!("<|reserved_special_token_{number}|>");
    let named = |name: &str| format!("<|{name}|>");
    let mut tokens = vec![named("begin_of_text"), named("end_of_text")];
    tokens.extend((0..4).map(reserved));
    tokens.extend([named("start_header_id"), named("end_header_id"), reserved(4), named("eot_id")]);
    tokens.extend((5..=250).map(reserved));
    tokens
}

/// The 208 special tokens of the first Qwen.
fn qwen_tokens() -> Vec<String> {
    let named = [END, "<|im_start|>", "<|im_end|>"].map(str::to_owned);
    let extra = (0..205).map(|number| format!("<|extra_{number}|>"));
    named.into_iter().chain(extra).collect()
}
