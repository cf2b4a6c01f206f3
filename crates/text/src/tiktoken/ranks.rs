//! The lines of a tiktoken file: a token in base64, and its rank.

use std::collections::HashMap;

/// The limit on the length of a token, ten times the longest ones.
const MAX_TOKEN_BYTES: usize = 1024;

/// The tokens by rank. A rank without a token is a hole.
#[derive(Debug)]
pub(super) struct Ranks {
    pub(super) tokens: Vec<Option<Vec<u8>>>,
}

impl Ranks {
    /// Parses the file. Ranks may have no holes, except at `reserved` ones.
    pub(super) fn parse(
        bytes: &[u8],
        is_reserved: impl Fn(usize) -> bool,
    ) -> Result<Ranks, String> {
        let mut ranks: HashMap<Vec<u8>, usize> = HashMap::new();
        for (number, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                continue;
            }
            let failed = |error: String| format!("line {}: {error}", number + 1);
            let (token, rank) = parse_line(line).map_err(failed)?;
            if let Some(other) = ranks.insert(token, rank) {
                return Err(failed(format!("the token has the ranks {other} and {rank}")));
            }
        }
        if let Some(byte) = (0..=255).find(|&byte: &u8| !ranks.contains_key(&vec![byte])) {
            return Err(format!(
                "no token is the byte 0x{byte:02X}, so some texts could not be encoded"
            ));
        }
        let largest = ranks.values().max().copied().unwrap_or(0);
        // Each hole needs a reserved rank, and these are few.
        if largest > 2 * ranks.len() {
            return Err(format!("{} tokens have ranks up to {largest}", ranks.len()));
        }
        let mut tokens = vec![None; largest + 1];
        for (token, rank) in ranks {
            if is_reserved(rank) {
                return Err(format!("the rank {rank} of a token is that of a special token"));
            }
            if tokens[rank].replace(token).is_some() {
                return Err(format!("two tokens have the rank {rank}"));
            }
        }
        match (0..tokens.len()).find(|&rank| tokens[rank].is_none() && !is_reserved(rank)) {
            Some(rank) => Err(format!("no token has the rank {rank}, but one has {largest}")),
            None => Ok(Ranks { tokens }),
        }
    }
}

fn parse_line(line: &[u8]) -> Result<(Vec<u8>, usize), String> {
    let space =
        line.iter().position(|&byte| byte == b' ').ok_or("expected a token and its rank")?;
    let token = decode_base64(&line[..space]).ok_or("the token is not in base64")?;
    if token.is_empty() {
        return Err("the token is empty".into());
    }
    if token.len() > MAX_TOKEN_BYTES {
        let size = token.len();
        return Err(format!("the token has {size} bytes, expected at most {MAX_TOKEN_BYTES}"));
    }
    let rank = std::str::from_utf8(&line[space + 1..]).ok();
    let rank: u32 = rank.and_then(|rank| rank.parse().ok()).ok_or("the rank is not a number")?;
    Ok((token, rank as usize))
}

/// The bytes of a text in base64, with its padding.
fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    let (groups, rest) = text.as_chunks::<4>();
    if !rest.is_empty() {
        return None;
    }
    let mut bytes = Vec::with_capacity(groups.len() * 3);
    for (number, group) in groups.iter().enumerate() {
        let padding = group.iter().rev().take_while(|&&digit| digit == b'=').count();
        if padding > 2 || padding > 0 && number + 1 < groups.len() {
            return None;
        }
        let mut value = 0_u32;
        for &digit in &group[..4 - padding] {
            value = value << 6 | base64_digit(digit)?;
        }
        value <<= 6 * padding;
        let [_, all @ ..] = value.to_be_bytes();
        let (kept, zeros) = all.split_at(3 - padding);
        if zeros.iter().any(|&byte| byte != 0) {
            return None;
        }
        bytes.extend(kept);
    }
    Some(bytes)
}

fn base64_digit(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

#[cfg(test)]
mod tests {
    use super::decode_base64;

    #[test]
    fn base64_is_decoded_strictly() {
        assert_eq!(decode_base64(b"").as_deref(), Some(&b""[..]));
        assert_eq!(decode_base64(b"TWFu+/8A").as_deref(), Some(&b"Man\xfb\xff\0"[..]));
        assert_eq!(decode_base64(b"TQ==").as_deref(), Some(&b"M"[..]));
        assert_eq!(decode_base64(b"TWE=").as_deref(), Some(&b"Ma"[..]));
        for bad in ["T", "TQ", "TQ=", "TR==", "TWF=", "T===", "====", "TQ==TQ==", "T Q="] {
            assert_eq!(decode_base64(bad.as_bytes()), None, "{bad}");
        }
    }
}
