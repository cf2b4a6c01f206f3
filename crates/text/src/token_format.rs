//! The layout of a token file: a safetensors file, so that Python's `safetensors` can read it.
//!
//! | tensor | content |
//! | --- | --- |
//! | `tokens` | u16, or u32 if the vocabulary has more than 65,536 tokens: the tokens of all
//! documents |
//! | `padding` | u8, if it is needed: zeros that align `ends` |
//! | `ends` | u64: for each document the number of tokens up to its end |
//!
//! The metadata has the `vocab_size`, and under `fulmen.crc32c` the checksums that
//! `fulmen_nn::safetensors` also verifies. The header always takes [`HEADER_BYTES`] bytes, so the
//! tokens can be written before their number is known.
//!
//! Out of scope: writing and reading the tokens (`token_file`, `token_array`).

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use crc32c::{crc32c, crc32c_append, crc32c_combine};
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use fulmen_data::{Error, Result};

/// The offset of the tensors in the files that this crate writes.
pub(super) const HEADER_BYTES: usize = 1024;

/// A larger header is not the header of a token file.
const MAX_HEADER_BYTES: u64 = 1 << 20;

const CHECKSUMS: &str = "fulmen.crc32c";
const VOCAB_SIZE: &str = "vocab_size";

/// Documents that are added in sequence: their ends, and how their tokens are encoded.
#[derive(Clone, Debug)]
pub(super) struct Documents {
    /// Bytes per token, 2 or 4.
    pub(super) width: usize,
    pub(super) vocab_size: usize,
    pub(super) separator: Option<u32>,
    pub(super) ends: Vec<u64>,
}

impl Documents {
    pub(super) fn new(vocab_size: usize) -> Result<Documents> {
        let width = match vocab_size {
            1..=0x1_0000 => 2,
            0 => return Err(Error::usage("a vocabulary of no tokens; pass Tokenizer::vocab_size")),
            _ if i32::try_from(vocab_size).is_ok() => 4,
            _ => {
                let message = format!(
                    "a vocabulary of {vocab_size} tokens; at most {} can be counted",
                    i32::MAX
                );
                return Err(Error::usage(message));
            }
        };
        Ok(Documents { width, vocab_size, separator: None, ends: Vec::new() })
    }

    pub(super) fn num_tokens(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Adds a document, and appends its encoded tokens to `bytes`. Documents without tokens are
    /// left out.
    pub(super) fn push(&mut self, document: &[u32], bytes: &mut Vec<u8>) -> Result<()> {
        let mut all = document.iter().copied().chain(self.separator);
        if let Some(token) = all.find(|&token| token as usize >= self.vocab_size) {
            return Err(Error::usage(format!(
                "the token {token} is not in the vocabulary of {}; pass the vocabulary of the tokenizer that made it \
                 (Tokenizer::vocab_size)",
                self.vocab_size
            )));
        }
        if document.is_empty() {
            return Ok(());
        }
        for token in document.iter().copied().chain(self.separator) {
            bytes.extend_from_slice(&token.to_le_bytes()[..self.width]);
        }
        self.ends
            .push(self.num_tokens() + document.len() as u64 + u64::from(self.separator.is_some()));
        Ok(())
    }

    /// Decodes the tokens in these bytes.
    pub(super) fn decode(&self, bytes: &[u8], tokens: &mut [u32]) {
        match self.width {
            2 => tokens
                .iter_mut()
                .zip(bytes.as_chunks().0)
                .for_each(|(to, from)| *to = u16::from_le_bytes(*from).into()),
            _ => tokens
                .iter_mut()
                .zip(bytes.as_chunks().0)
                .for_each(|(to, from)| *to = u32::from_le_bytes(*from)),
        }
    }

    /// The header of a file with these documents. The arguments are the checksums of the bytes of
    /// `tokens`, `padding` and `ends`.
    pub(super) fn header(&self, tokens: u32, padding: u32, ends: u32) -> Vec<u8> {
        let count = self.num_tokens();
        let documents = self.ends.len() as u64;
        let size = count * self.width as u64;
        let dtype = if self.width == 2 { Dtype::U16 } else { Dtype::U32 };
        let rows = [
            ("tokens", dtype, count, size, tokens),
            ("padding", Dtype::U8, padding_bytes(size), padding_bytes(size), padding),
            ("ends", Dtype::U64, documents, documents * 8, ends),
        ];
        let mut header = serde_json::Map::new();
        let mut sums = Checksums::default();
        let mut start = 0;
        for (name, dtype, length, size, crc) in
            rows.into_iter().filter(|row| row.0 != "padding" || row.2 > 0)
        {
            let info =
                json!({ "dtype": dtype, "shape": [length], "data_offsets": [start, start + size] });
            header.insert(name.to_owned(), info);
            start += size;
            let ty = crc32c(type_text(dtype, length).as_bytes());
            sums.tensors.insert(name.to_owned(), crc32c_combine(ty, crc, size as usize));
        }
        let vocab_size = self.vocab_size.to_string();
        sums.metadata.insert(VOCAB_SIZE.to_owned(), crc32c(vocab_size.as_bytes()));
        let metadata = json!({ VOCAB_SIZE: vocab_size, CHECKSUMS: json!(sums).to_string() });
        header.insert("__metadata__".to_owned(), metadata);
        let mut bytes = ((HEADER_BYTES - 8) as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(Value::Object(header).to_string().as_bytes());
        bytes.resize(HEADER_BYTES, b' ');
        bytes
    }
}

/// The number of padding bytes after `size` bytes of tokens.
pub(super) fn padding_bytes(size: u64) -> u64 {
    size.next_multiple_of(8) - size
}

/// The text of a tensor's dtype and length that its checksum includes.
fn type_text(dtype: Dtype, length: u64) -> String {
    format!("{}[{length}]", format!("{dtype:?}").to_lowercase())
}

/// Rejects positions out of range.
pub(super) fn check_range(start: u64, count: usize, tokens: u64) -> Result<()> {
    if start.checked_add(count as u64).is_some_and(|end| end <= tokens) {
        Ok(())
    } else {
        Err(Error::usage(format!(
            "there are no {count} tokens from {start} on; there are {tokens} in total"
        )))
    }
}

#[derive(Default, Deserialize, Serialize)]
struct Checksums {
    tensors: BTreeMap<String, u32>,
    metadata: BTreeMap<String, u32>,
}

/// The content of a header.
#[derive(Debug)]
pub(super) struct Header {
    /// The header's bytes.
    pub(super) text: Vec<u8>,
    /// The tensors in the order of the file.
    tensors: Vec<Tensor>,
    pub(super) width: usize,
    pub(super) vocab_size: usize,
    pub(super) num_tokens: u64,
    /// The offset of the tokens.
    pub(super) tokens_offset: u64,
    /// The offset and the size of the documents' ends.
    pub(super) ends_region: (u64, u64),
}

#[derive(Debug)]
struct Tensor {
    name: String,
    ty: String,
    bytes: u64,
    checksum: u32,
}

impl Header {
    /// Reads the header of a file of `size` bytes, and checks it against the size.
    pub(super) fn read(file: &mut impl Read, size: u64, path: &Path) -> Result<Header> {
        let io = |source| Error::io(path, "cannot read the token file", source);
        let mut prefix = [0; 8];
        if size >= 8 {
            file.read_exact(&mut prefix).map_err(io)?;
        }
        let length = u64::from_le_bytes(prefix);
        if size < 8 || length > MAX_HEADER_BYTES.min(size - 8) {
            let message =
                format!("not a token file: its {size} bytes do not hold the header of one");
            return Err(Error::file(path, message));
        }
        let mut text = vec![0; length as usize];
        file.read_exact(&mut text).map_err(io)?;
        Header::parse(text, size).map_err(|message| Error::file(path, message))
    }

    fn parse(text: Vec<u8>, size: u64) -> Result<Header, String> {
        let header: Metadata = serde_json::from_slice(&text)
            .map_err(|error| format!("not a token file, or its header is damaged: {error}"))?;
        let data = 8 + text.len() as u64;
        let tensor = |name: &str| {
            let info = header.info(name)?;
            let &[length] = &info.shape[..] else { return None };
            Some((info.dtype, length as u64, data + info.data_offsets.0 as u64))
        };
        let (width, num_tokens, tokens_offset, documents, ends_offset) =
            match (tensor("tokens"), tensor("ends")) {
                (Some((Dtype::U16, tokens, start)), Some((Dtype::U64, ends, end))) => {
                    (2, tokens, start, ends, end)
                }
                (Some((Dtype::U32, tokens, start)), Some((Dtype::U64, ends, end))) => {
                    (4, tokens, start, ends, end)
                }
                _ => {
                    let expected = "the tensors `tokens` of u16[n] or u32[n] and `ends` of u64[m]";
                    return Err(format!("not a token file: it should have {expected}"));
                }
            };
        let expected = data.saturating_add(header.data_len() as u64);
        if expected != size {
            return Err(format!(
                "the file has {size} bytes, but its header promises {num_tokens} tokens and {documents} documents, \
                 which take {expected}; it was truncated or overwritten: create it again"
            ));
        }
        let metadata = |key: &str| header.metadata().as_ref().and_then(|texts| texts.get(key));
        let vocabulary =
            metadata(VOCAB_SIZE).ok_or("not a token file: its metadata has no `vocab_size`")?;
        let layout = vocabulary.parse().ok().and_then(|size| Documents::new(size).ok());
        let Some(Documents { vocab_size, .. }) = layout.filter(|layout| layout.width == width)
        else {
            return Err(format!(
                "it has {width} bytes per token, which do not fit its vocabulary of {vocabulary}"
            ));
        };
        let damaged = |region: &str| {
            format!(
                "the checksum of {region} is missing or wrong: the file is damaged; create it again"
            )
        };
        let sums = metadata(CHECKSUMS)
            .and_then(|sums| serde_json::from_str::<Checksums>(sums).ok())
            .ok_or_else(|| damaged("all of it"))?;
        if sums.metadata.get(VOCAB_SIZE) != Some(&crc32c(vocabulary.as_bytes())) {
            return Err(damaged("`vocab_size`"));
        }
        let tensors = header
            .offset_keys()
            .into_iter()
            .filter_map(|name| Some((header.info(&name)?, name)))
            .map(|(info, name)| {
                let (start, end) = info.data_offsets;
                let checksum =
                    *sums.tensors.get(&name).ok_or_else(|| damaged(&format!("`{name}`")))?;
                let ty = type_text(info.dtype, info.shape.iter().product::<usize>() as u64);
                Ok(Tensor { name, ty, bytes: (end - start) as u64, checksum })
            })
            .collect::<Result<_, String>>()?;
        Ok(Header {
            text,
            tensors,
            width,
            vocab_size,
            num_tokens,
            tokens_offset,
            ends_region: (ends_offset, documents * 8),
        })
    }

    /// Reads all tensors in order and verifies their checksums. `take` gets the name and the data
    /// of each tensor.
    pub(super) fn read_all(
        &self,
        file: &mut impl Read,
        path: &Path,
        mut take: impl FnMut(&str, &[u8]),
    ) -> Result<()> {
        let mut bytes = vec![0; 1 << 18];
        for Tensor { name, ty, bytes: size, checksum } in &self.tensors {
            let mut crc = crc32c(ty.as_bytes());
            let mut remaining = *size;
            // The data is read in pieces, because a damaged header may declare any number of bytes.
            while remaining > 0 {
                let part = &mut bytes[..remaining.min(1 << 18) as usize];
                file.read_exact(part)
                    .map_err(|source| Error::io(path, "cannot read the token file", source))?;
                crc = crc32c_append(crc, part);
                take(name, part);
                remaining -= part.len() as u64;
            }
            if crc != *checksum {
                let message = format!(
                    "the checksum of `{name}` is {crc:08x}, not {checksum:08x}: the file is damaged; create it again"
                );
                return Err(Error::file(path, message));
            }
        }
        Ok(())
    }

    /// Makes the documents from the bytes of their ends.
    pub(super) fn documents(&self, ends: &[u8], path: &Path) -> Result<Documents> {
        let ends: Vec<u64> =
            ends.as_chunks().0.iter().map(|end| u64::from_le_bytes(*end)).collect();
        let ascending = ends.first().is_none_or(|&end| end > 0)
            && ends.windows(2).all(|pair| pair[0] < pair[1]);
        if ascending && ends.last().copied().unwrap_or(0) == self.num_tokens {
            Ok(Documents { width: self.width, vocab_size: self.vocab_size, separator: None, ends })
        } else {
            Err(Error::file(
                path,
                format!(
                    "the ends of its documents do not ascend to its {} tokens; the file is damaged",
                    self.num_tokens
                ),
            ))
        }
    }
}
