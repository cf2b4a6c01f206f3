//! The record batches of Arrow IPC files, in the file or stream format, as blocks of rows.
//!
//! Both formats contain the same messages. The file format has an index at its end; in the stream
//! format, messages are found by skipping from one to the next.
//!
//! Out of scope: the table (`arrow_files`).

use std::sync::Arc;

use arrow_buffer::{Buffer, MutableBuffer};
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{FileDecoder, read_footer_length};
use arrow_ipc::{
    Block as IpcBlock, CompressionType, MessageHeader, MetadataVersion, root_as_footer,
    root_as_message,
};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};

use super::block_reader::{Block, BlockSource, RowNumbers, RowOrigin, guard};
use super::source_file::{SourceFile, fingerprint_inputs};
use fulmen_data::{Error, Fingerprint, Result};

const MAGIC: &[u8; 6] = b"ARROW1";

/// One file with its index of batches.
pub(crate) struct ArrowFile {
    pub(crate) input: Arc<SourceFile>,
    pub(crate) schema: SchemaRef,
    version: MetadataVersion,
    dictionaries: Vec<IpcBlock>,
    /// The batches, and their numbers of rows.
    batches: Vec<(IpcBlock, usize)>,
}

/// The bytes of a message and its body, for `FileDecoder`.
fn read(input: &SourceFile, block: &IpcBlock) -> Result<Buffer> {
    let size = usize::try_from(block.metaDataLength())
        .ok()
        .zip(usize::try_from(block.bodyLength()).ok())
        .and_then(|(metadata, body)| metadata.checked_add(body));
    let (Some(size), Ok(offset)) = (size, u64::try_from(block.offset())) else {
        return Err(damaged(input, "a batch has a negative size"));
    };
    if block.metaDataLength() < 8
        || offset.checked_add(size as u64).is_none_or(|end| end > input.size())
    {
        return Err(input.error(format!(
            "a batch of {size} bytes should be at byte {offset}, but the file has {} bytes; it is damaged or \
             truncated: copy or download it again",
            input.size()
        )));
    }
    // The buffer is aligned, so that the arrays need not be copied.
    let mut buffer = MutableBuffer::from_len_zeroed(size);
    input.read_at(offset, buffer.as_slice_mut())?;
    check_sizes(input, block, &buffer)?;
    Ok(buffer.into())
}

/// Rejects compressed buffers that declare an impossible size, for which memory would be allocated.
fn check_sizes(input: &SourceFile, block: &IpcBlock, bytes: &[u8]) -> Result<()> {
    let message = message(input, bytes)?;
    let batch = message
        .header_as_record_batch()
        .or_else(|| message.header_as_dictionary_batch().and_then(|dictionary| dictionary.data()));
    let Some((batch, compression)) = batch.and_then(|batch| Some((batch, batch.compression()?)))
    else {
        return Ok(());
    };
    // A byte of LZ4 expands to at most 255 bytes. The smallest block of zstd has 4 bytes, and a
    // block expands to at most 128 KiB.
    let max_ratio = if compression.codec() == CompressionType::LZ4_FRAME { 255 } else { 32 << 10 };
    let body = bytes.get(block.metaDataLength() as usize..).unwrap_or_default();
    for buffer in batch.buffers().iter().flatten().filter(|buffer| buffer.length() > 0) {
        let start = usize::try_from(buffer.offset()).ok().and_then(|start| body.get(start..));
        let Some(claim) = start.and_then(|rest| rest.first_chunk()) else {
            return Err(damaged(input, "a buffer is outside of its batch"));
        };
        let claim = i64::from_le_bytes(*claim);
        let length = buffer.length().min(body.len() as i64);
        if claim > length.saturating_mul(max_ratio) {
            return Err(damaged(
                input,
                format!("a buffer of {length} bytes claims to hold {claim}"),
            ));
        }
    }
    Ok(())
}

/// The header of a message, after its marker and length.
fn message<'a>(input: &SourceFile, bytes: &'a [u8]) -> Result<arrow_ipc::Message<'a>> {
    let start = match bytes.get(..4) {
        Some([0xff, 0xff, 0xff, 0xff]) => 8,
        _ => 4,
    };
    let content = bytes.get(start..).ok_or_else(|| damaged(input, "a message is too short"))?;
    root_as_message(content).map_err(|error| damaged(input, error))
}

fn damaged(input: &SourceFile, reason: impl std::fmt::Display) -> Error {
    if cfg!(not(feature = "parquet")) && reason.to_string().contains("zstd feature") {
        return input.error(
            "the Arrow file is compressed with zstd; build fulmen with its feature `parquet`",
        );
    }
    input.error(format!(
        "the Arrow file is damaged or truncated ({reason}); copy or download it again"
    ))
}

impl ArrowFile {
    /// Finds the batches of a file in either format.
    pub(crate) fn open(input: &Arc<SourceFile>) -> Result<ArrowFile> {
        let mut start = [0; 6];
        let len = input.size().min(6) as usize;
        input.read_at(0, &mut start[..len])?;
        guard(input, || {
            if &start == MAGIC {
                ArrowFile::open_file(input)
            } else {
                ArrowFile::open_stream(input, start)
            }
        })
    }

    fn open_file(input: &Arc<SourceFile>) -> Result<ArrowFile> {
        let failed = |error: ArrowError| damaged(input, error);
        let Some(end) = input.size().checked_sub(10) else {
            return Err(damaged(input, "it ends before its footer"));
        };
        let mut tail = [0; 10];
        input.read_at(end, &mut tail)?;
        let len = read_footer_length(tail).map_err(failed)?;
        let Some(start) = end.checked_sub(len as u64) else {
            return Err(damaged(input, "its footer is longer than the file"));
        };
        let footer_bytes = input.read_range(start, len)?;
        let footer = root_as_footer(&footer_bytes).map_err(|error| damaged(input, error))?;
        let schema = footer.schema().ok_or_else(|| damaged(input, "it has no schema"))?;
        let schema = Arc::new(try_fb_to_schema(schema).map_err(failed)?);
        let dictionaries = footer.dictionaries().iter().flatten().copied().collect();
        let mut batches = Vec::new();
        for block in footer.recordBatches().iter().flatten() {
            let (offset, len) = u64::try_from(block.offset())
                .ok()
                .zip(usize::try_from(block.metaDataLength()).ok())
                .ok_or_else(|| damaged(input, "a batch has a negative offset"))?;
            let metadata = input.read_range(offset, len)?;
            batches.push((*block, batch_rows(input, &schema, message(input, &metadata)?)?));
        }
        Ok(ArrowFile {
            input: Arc::clone(input),
            schema,
            version: footer.version(),
            dictionaries,
            batches,
        })
    }

    fn open_stream(input: &Arc<SourceFile>, start: [u8; 6]) -> Result<ArrowFile> {
        // Other data could be parsed as an endless message.
        let length = u32::from_le_bytes([start[0], start[1], start[2], start[3]]);
        if length != u32::MAX && u64::from(length) > input.size() || input.size() < 8 {
            return Err(input.error(format!(
                "not an Arrow IPC file: it starts with the bytes {start:02x?}, expected `ARROW1` (file format) or \
                 ff ff ff ff (stream format)"
            )));
        }
        let mut schema: Option<(SchemaRef, MetadataVersion)> = None;
        let mut dictionaries = Vec::new();
        let mut batches = Vec::new();
        let mut offset = 0u64;
        while let Some((prefix, len)) = message_length(input, offset)? {
            let metadata = input.read_range(offset + prefix, len)?;
            let message = root_as_message(&metadata).map_err(|error| damaged(input, error))?;
            let body = message.bodyLength();
            let header = i32::try_from(prefix + len as u64).ok().zip(i64::try_from(offset).ok());
            let (header, block_offset) =
                header.ok_or_else(|| damaged(input, "a message is too long"))?;
            let next = u64::try_from(body)
                .ok()
                .and_then(|body| (offset + header as u64).checked_add(body));
            let Some(next) = next.filter(|&next| next <= input.size()) else {
                return Err(input.error(format!(
                    "the file is truncated: a batch of {body} bytes is at byte {offset}, but the file ends after \
                     {} bytes; copy or download it again",
                    input.size()
                )));
            };
            let block = IpcBlock::new(block_offset, header, body);
            match message.header_type() {
                MessageHeader::Schema => {
                    let schema_message = message
                        .header_as_schema()
                        .ok_or_else(|| damaged(input, "an empty schema"))?;
                    let parsed =
                        try_fb_to_schema(schema_message).map_err(|error| damaged(input, error))?;
                    schema = Some((Arc::new(parsed), message.version()));
                }
                MessageHeader::DictionaryBatch if batches.is_empty() => dictionaries.push(block),
                MessageHeader::DictionaryBatch => {
                    return Err(input.error(
                        "the dictionaries of this stream change between batches, so its rows cannot be read by index; \
                         write it in the file format",
                    ));
                }
                _ => match &schema {
                    Some((schema, _)) => batches.push((block, batch_rows(input, schema, message)?)),
                    None => return Err(damaged(input, "a batch precedes the schema")),
                },
            }
            offset = next;
        }
        let (schema, version) = schema.ok_or_else(|| damaged(input, "it has no schema"))?;
        Ok(ArrowFile { input: Arc::clone(input), schema, version, dictionaries, batches })
    }

    fn decoder(&self, columns: Option<&[usize]>) -> Result<FileDecoder> {
        let mut decoder = FileDecoder::new(Arc::clone(&self.schema), self.version);
        if let Some(columns) = columns {
            decoder = decoder.with_projection(columns.to_vec());
        }
        for block in &self.dictionaries {
            let buffer = read(&self.input, block)?;
            guard(&self.input, || {
                decoder.read_dictionary(block, &buffer).map_err(|error| damaged(&self.input, error))
            })?;
        }
        Ok(decoder)
    }
}

/// The prefix of a message in a stream, and the length of its metadata; `None` at the end.
fn message_length(input: &SourceFile, offset: u64) -> Result<Option<(u64, usize)>> {
    let rest = input.size() - offset;
    if rest == 0 {
        return Ok(None);
    }
    if rest < 4 {
        return Err(damaged(input, "it ends in a message's length"));
    }
    let mut prefix = [0; 8];
    let prefix_bytes = rest.min(8) as usize;
    input.read_at(offset, &mut prefix[..prefix_bytes])?;
    let [a, b, c, d, e, f, g, h] = prefix;
    // Before version 0.15, the format had no marker before the length.
    let (size, length) = if [a, b, c, d] != [0xff; 4] {
        (4, i32::from_le_bytes([a, b, c, d]))
    } else if prefix_bytes < 8 {
        return Err(damaged(input, "it ends in a message's length"));
    } else {
        (8, i32::from_le_bytes([e, f, g, h]))
    };
    match usize::try_from(length) {
        Ok(0) => Ok(None),
        Ok(length) => Ok(Some((size, length))),
        Err(_) => Err(damaged(input, "a message has a negative length")),
    }
}

/// The number of rows in a batch. A number of rows that the batch's bytes cannot contain is
/// rejected, because memory would be allocated for it.
fn batch_rows(
    input: &SourceFile,
    schema: &Schema,
    message: arrow_ipc::Message<'_>,
) -> Result<usize> {
    let batch = message
        .header_as_record_batch()
        .ok_or_else(|| damaged(input, "a message of an unknown kind"))?;
    let rows = batch.length();
    // A row takes at least one bit, except in types that may take no space.
    let takes_bits = |field: &Arc<Field>| {
        let data_type = field.data_type();
        data_type.is_primitive()
            || matches!(data_type, DataType::Boolean | DataType::Utf8 | DataType::Binary)
    };
    let bits = u64::try_from(message.bodyLength()).unwrap_or(0).min(input.size()).saturating_mul(8);
    let bounded = batch.compression().is_none() && schema.fields().iter().any(takes_bits);
    match usize::try_from(rows) {
        Ok(count) if !bounded || count as u64 <= bits => Ok(count),
        _ => Err(damaged(
            input,
            format!("a batch of {} bytes claims to have {rows} rows", message.bodyLength()),
        )),
    }
}

/// Several files, with the same columns of each.
pub(crate) struct ArrowBlocks {
    files: Arc<Vec<ArrowFile>>,
    decoders: Vec<FileDecoder>,
    /// For each batch: its file, its number in the file, and the number of rows before it.
    batches: Vec<(usize, usize, usize)>,
}

impl ArrowBlocks {
    pub(crate) fn new(
        files: Arc<Vec<ArrowFile>>,
        columns: Option<&[usize]>,
    ) -> Result<ArrowBlocks> {
        let decoders = files.iter().map(|file| file.decoder(columns)).collect::<Result<_>>()?;
        let mut batches = Vec::new();
        for (number, file) in files.iter().enumerate() {
            let mut first_row = 0usize;
            for (batch, &(_, rows)) in file.batches.iter().enumerate() {
                batches.push((number, batch, first_row));
                first_row = first_row.saturating_add(rows);
            }
        }
        Ok(ArrowBlocks { files, decoders, batches })
    }
}

impl BlockSource for ArrowBlocks {
    fn block_rows(&self) -> Vec<usize> {
        self.batches.iter().map(|&(file, batch, _)| self.files[file].batches[batch].1).collect()
    }

    fn row_origin(&self, block: usize) -> Option<RowOrigin> {
        let (file, _, first_row) = self.batches[block];
        Some(RowOrigin::new(&self.files[file].input, RowNumbers::Rows(first_row)))
    }

    fn decode(&self, block: usize) -> Result<Block> {
        let (number, batch, first_row) = self.batches[block];
        let file = &self.files[number];
        let block = &file.batches[batch].0;
        let buffer = read(&file.input, block)?;
        let read = buffer.len();
        let decoded = guard(&file.input, || {
            self.decoders[number]
                .read_record_batch(block, &buffer)
                .map_err(|error| damaged(&file.input, error))
        })?
        .ok_or_else(|| damaged(&file.input, "an empty message"))?;
        // Decompressed arrays own their memory; other arrays share the memory that was read.
        let sizes = decoded
            .columns()
            .iter()
            .filter_map(|column| column.to_data().get_slice_memory_size().ok());
        let bytes = sizes.sum::<usize>().max(read);
        Ok(Block::new(decoded, RowOrigin::new(&file.input, RowNumbers::Rows(first_row)), bytes))
    }

    fn select(&self, columns: &[usize]) -> Result<Arc<dyn BlockSource>> {
        Ok(Arc::new(ArrowBlocks::new(Arc::clone(&self.files), Some(columns))?))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint_inputs(self.files.iter().map(|file| &*file.input), fingerprint)
    }
}
