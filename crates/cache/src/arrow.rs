//! One part of a cache as an Arrow IPC file: a schema, one record batch with all rows, a footer.
//!
//! All rows have the same size, so the position of every byte is known before the first sample is
//! read. This module therefore does not use `arrow-ipc`'s writer, which needs a batch in memory. It
//! writes only the data around the columns, and many threads can write the columns in any order.
//! When a part is read, flatbuffers' verifier checks it, and the result is compared with the
//! expected layout. `arrow-ipc`'s `FileDecoder` is not used, because it panics if a damaged file
//! has offsets outside the file. Checking all offsets first would leave nothing for it to do.
//!
//! Out of scope: the files (`atomic_file`), and the samples.

use std::ops::Range;

use arrow_ipc::convert::IpcSchemaEncoder;
use arrow_ipc::{
    Block, Buffer, FieldNode, FooterBuilder, Message, MessageBuilder, MessageHeader,
    MetadataVersion, RecordBatchBuilder, Type, root_as_footer, root_as_message,
};
use arrow_schema::{DataType, Field as ArrowField, Schema};
use flatbuffers::FlatBufferBuilder;
use fulmen_tensor::DType;

use fulmen_data::{Error, Field, Result};

const MAGIC: &[u8] = b"ARROW1";
/// The alignment of columns. Arrow recommends this value, and it suits SIMD.
const ALIGNMENT: u64 = 64;
/// The data around the columns takes some kilobytes. A file that declares more is damaged.
const MAX_METADATA_BYTES: u64 = 64 << 20;
/// The metadata keys of a part's schema.
const KEY: &str = "fulmen.cache.key";
const PART: &str = "fulmen.cache.part";
const FIRST_ROW: &str = "fulmen.cache.first_row";
const SAMPLES: &str = "fulmen.cache.samples";
const VARIANTS: &str = "fulmen.cache.variants";
const VERSION: &str = "fulmen.cache.version";
/// The metadata key of a field.
const FIELD: &str = "fulmen.field";

/// The identity of a part, as stored in its schema.
#[derive(Clone, Debug)]
pub(crate) struct PartIdentity {
    pub(crate) key: String,
    pub(crate) part: usize,
    pub(crate) first_row: usize,
    pub(crate) samples: usize,
    pub(crate) variants: usize,
    pub(crate) version: String,
}

/// The Arrow type of a field's elements.
enum Kind {
    /// A scalar.
    Scalar(DataType),
    /// An array of a fixed shape.
    Tensor(DataType, i32),
    /// A type that Arrow does not support.
    Binary(i32),
}

fn kind(field: &Field) -> Result<Kind> {
    let element = match field.dtype {
        DType::F32 => Some(DataType::Float32),
        DType::F16 => Some(DataType::Float16),
        DType::F64 => Some(DataType::Float64),
        DType::I8 => Some(DataType::Int8),
        DType::I16 => Some(DataType::Int16),
        DType::I32 => Some(DataType::Int32),
        DType::I64 => Some(DataType::Int64),
        DType::U8 => Some(DataType::UInt8),
        DType::U16 => Some(DataType::UInt16),
        DType::U32 => Some(DataType::UInt32),
        DType::U64 => Some(DataType::UInt64),
        // Arrow packs booleans into bits.
        DType::Bool | DType::Bf16 | DType::C64 | DType::C128 => None,
    };
    let count = |number: usize| {
        i32::try_from(number).map_err(|_| {
            Error::field(format!(
                "field `{field}` is too large for a cache: Arrow counts the elements of a sample with 31 bits; split the \
                 field"
            ))
        })
    };
    Ok(match element {
        Some(element) if field.shape.is_empty() => Kind::Scalar(element),
        Some(element) => Kind::Tensor(element, count(field.elements()?)?),
        None => Kind::Binary(count(field.sample_bytes()?)?),
    })
}

fn schema(fields: &[Field], identity: &PartIdentity) -> Result<Schema> {
    let columns = fields.iter().map(|field| {
        let mut metadata = vec![(FIELD.to_owned(), field.to_string())];
        let data_type = match kind(field)? {
            Kind::Scalar(element) => element,
            Kind::Binary(size) => DataType::FixedSizeBinary(size),
            Kind::Tensor(element, size) => {
                // Arrow's canonical extension type, from which pyarrow restores the shape.
                metadata.push((
                    "ARROW:extension:name".to_owned(),
                    "arrow.fixed_shape_tensor".to_owned(),
                ));
                metadata.push((
                    "ARROW:extension:metadata".to_owned(),
                    format!("{{\"shape\":{:?}}}", field.shape),
                ));
                DataType::FixedSizeList(ArrowField::new("item", element, false).into(), size)
            }
        };
        Ok(ArrowField::new(&field.name, data_type, false)
            .with_metadata(metadata.into_iter().collect::<Metadata>()))
    });
    let PartIdentity { key, part, first_row, samples, variants, version } = identity;
    let metadata: Metadata = [
        (KEY, key.clone()),
        (PART, part.to_string()),
        (FIRST_ROW, first_row.to_string()),
        (SAMPLES, samples.to_string()),
        (VARIANTS, variants.to_string()),
        (VERSION, version.clone()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
    Ok(Schema::new(columns.collect::<Result<Vec<_>>>()?).with_metadata(metadata))
}

type Metadata = std::collections::HashMap<String, String>;

/// The frame of a part: the data around the columns, and the position of each column.
#[derive(Debug)]
pub(crate) struct Frame {
    /// The bytes before the first column.
    pub(crate) head: Vec<u8>,
    /// The bytes after the last column, including padding.
    pub(crate) tail: Vec<u8>,
    /// The offset of the tail.
    pub(crate) tail_start: u64,
    /// The position of each column's rows.
    pub(crate) columns: Vec<Range<u64>>,
}

impl Frame {
    /// The frame of a part with `rows` rows of these fields.
    pub(crate) fn new(fields: &[Field], rows: usize, identity: &PartIdentity) -> Result<Frame> {
        let too_large = || {
            Error::usage(format!("{rows} samples do not fit into one file; make the parts smaller"))
        };
        let schema = schema(fields, identity)?;
        let Columns { nodes, buffers, columns, end, padded } =
            Columns::new(fields, rows).ok_or_else(too_large)?;

        let mut head = [MAGIC, &[0, 0]].concat();
        encapsulate(&mut head, &schema_message(&schema));
        let batch_start = head.len();
        encapsulate(&mut head, &batch_message(rows, &nodes, &buffers, padded));
        let body = head.len() as u64;
        let block =
            Block::new(batch_start as i64, (head.len() - batch_start) as i32, padded as i64);

        let mut tail = vec![0; (padded - end) as usize];
        // The end marker. Readers of streams need it; readers of files do not.
        tail.extend_from_slice(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        let footer = footer(&schema, block);
        tail.extend_from_slice(&footer);
        tail.extend_from_slice(&(footer.len() as u32).to_le_bytes());
        tail.extend_from_slice(MAGIC);
        let columns =
            columns.into_iter().map(|column| body + column.start..body + column.end).collect();
        Ok(Frame { head, tail, tail_start: body + end, columns })
    }

    /// The size of the whole file.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.tail_start + self.tail.len() as u64
    }
}

/// The layout of a record batch's body: consecutive aligned columns without validity bitmaps.
struct Columns {
    nodes: Vec<FieldNode>,
    buffers: Vec<Buffer>,
    columns: Vec<Range<u64>>,
    /// The ends of the last column and of the body.
    end: u64,
    padded: u64,
}

impl Columns {
    /// `None` if the columns are too large for a file.
    fn new(fields: &[Field], rows: usize) -> Option<Columns> {
        let mut nodes = Vec::new();
        let mut buffers = Vec::new();
        let mut columns = Vec::new();
        let mut end = 0u64;
        let mut padded = 0u64;
        for field in fields {
            let length =
                u64::try_from(field.sample_bytes().ok()?).ok()?.checked_mul(rows as u64)?;
            let no_bitmap = Buffer::new(padded as i64, 0);
            nodes.push(FieldNode::new(rows as i64, 0));
            buffers.push(no_bitmap);
            if let Kind::Tensor(_, size) = kind(field).ok()? {
                nodes.push(FieldNode::new((rows as i64).checked_mul(i64::from(size))?, 0));
                buffers.push(no_bitmap);
            }
            buffers.push(Buffer::new(padded as i64, length as i64));
            end = padded.checked_add(length).filter(|&end| end <= 1 << 60)?;
            columns.push(padded..end);
            padded = end.next_multiple_of(ALIGNMENT);
        }
        Some(Columns { nodes, buffers, columns, end, padded })
    }
}

/// Appends a message with its length, padded to the alignment.
fn encapsulate(file: &mut Vec<u8>, message: &[u8]) {
    let end = (file.len() + 8 + message.len()).next_multiple_of(ALIGNMENT as usize);
    file.extend_from_slice(&[0xff; 4]);
    file.extend_from_slice(&((end - file.len() - 4) as u32).to_le_bytes());
    file.extend_from_slice(message);
    file.resize(end, 0);
}

fn schema_message(schema: &Schema) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let header = IpcSchemaEncoder::new().schema_to_fb_offset(&mut builder, schema).as_union_value();
    let mut message = MessageBuilder::new(&mut builder);
    message.add_version(MetadataVersion::V5);
    message.add_header_type(MessageHeader::Schema);
    message.add_bodyLength(0);
    message.add_header(header);
    let message = message.finish();
    builder.finish(message, None);
    builder.finished_data().to_vec()
}

fn batch_message(rows: usize, nodes: &[FieldNode], buffers: &[Buffer], body: u64) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let nodes = builder.create_vector(nodes);
    let buffers = builder.create_vector(buffers);
    let mut batch = RecordBatchBuilder::new(&mut builder);
    batch.add_length(rows as i64);
    batch.add_nodes(nodes);
    batch.add_buffers(buffers);
    let header = batch.finish().as_union_value();
    let mut message = MessageBuilder::new(&mut builder);
    message.add_version(MetadataVersion::V5);
    message.add_header_type(MessageHeader::RecordBatch);
    message.add_bodyLength(body as i64);
    message.add_header(header);
    let message = message.finish();
    builder.finish(message, None);
    builder.finished_data().to_vec()
}

fn footer(schema: &Schema, block: Block) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let dictionaries = builder.create_vector::<Block>(&[]);
    let batches = builder.create_vector(&[block]);
    let schema = IpcSchemaEncoder::new().schema_to_fb_offset(&mut builder, schema);
    let mut footer = FooterBuilder::new(&mut builder);
    footer.add_version(MetadataVersion::V5);
    footer.add_schema(schema);
    footer.add_dictionaries(dictionaries);
    footer.add_recordBatches(batches);
    let footer = footer.finish();
    builder.finish(footer, None);
    builder.finished_data().to_vec()
}

/// The positions of the columns in a part's file, or the reason why the file is not the expected
/// part. `read` reads bytes of the file and is called only for positions within its `file_bytes`
/// bytes.
pub(crate) fn locate(
    read: &dyn Fn(u64, usize) -> Result<Vec<u8>>,
    file_bytes: u64,
    fields: &[Field],
    rows: usize,
    key: &str,
    part: usize,
) -> Result<Result<Vec<Range<u64>>, String>> {
    // Read errors are returned as errors; invalid content is returned as a message.
    let trailer = 4 + MAGIC.len() as u64;
    let Some(footer_end) = file_bytes.checked_sub(trailer).filter(|&end| end >= 8) else {
        return Ok(Err(format!("it has {file_bytes} bytes, too few for an Arrow file")));
    };
    let end = read(footer_end, trailer as usize)?;
    if end[4..] != *MAGIC {
        return Ok(Err("it does not end with the magic bytes of an Arrow file".to_owned()));
    }
    let length = u64::from(u32::from_le_bytes([end[0], end[1], end[2], end[3]]));
    let Some(footer_start) =
        footer_end.checked_sub(length).filter(|_| length <= MAX_METADATA_BYTES)
    else {
        return Ok(Err(format!("its footer claims {length} bytes, but the file has {file_bytes}")));
    };
    let footer = read(footer_start, length as usize)?;
    let block = match check_footer(&footer, fields, key, part) {
        Ok(block) => block,
        Err(message) => return Ok(Err(message)),
    };
    let unsigned = |number: i64| u64::try_from(number).ok();
    let start = unsigned(block.offset());
    let metadata = unsigned(i64::from(block.metaDataLength()));
    let body = unsigned(block.bodyLength());
    let located = start.zip(metadata).zip(body).and_then(|((start, metadata), body)| {
        let body_start =
            start.checked_add(metadata).filter(|_| (8..=MAX_METADATA_BYTES).contains(&metadata))?;
        let body_end = body_start.checked_add(body).filter(|&end| end <= footer_start)?;
        Some((start, metadata as usize, body_start..body_end))
    });
    let Some((start, metadata, body)) = located else {
        return Ok(Err("its footer points outside the file".to_owned()));
    };
    let message = read(start, metadata)?;
    Ok(check_batch(&message, fields, rows, body))
}

/// The block of the only record batch.
fn check_footer(footer: &[u8], fields: &[Field], key: &str, part: usize) -> Result<Block, String> {
    let footer =
        root_as_footer(footer).map_err(|error| format!("its footer is damaged: {error}"))?;
    let schema = footer.schema().ok_or("its footer has no schema")?;
    let metadata = |name: &str| {
        let pairs = schema.custom_metadata()?;
        pairs.iter().find(|pair| pair.key() == Some(name)).and_then(|pair| pair.value())
    };
    for (name, expected) in [(KEY, key), (PART, &part.to_string())] {
        match metadata(name) {
            Some(value) if value == expected => {}
            value => return Err(format!("its {name} is {value:?}, expected {expected:?}")),
        }
    }
    let columns = schema.fields().ok_or("its schema has no fields")?;
    if columns.len() != fields.len() {
        return Err(format!("it has {} columns, expected {}", columns.len(), fields.len()));
    }
    for (column, field) in columns.iter().zip(fields) {
        let expected = match kind(field).map_err(|error| error.to_string())? {
            Kind::Scalar(DataType::Float16 | DataType::Float32 | DataType::Float64) => {
                Type::FloatingPoint
            }
            Kind::Scalar(_) => Type::Int,
            Kind::Tensor(..) => Type::FixedSizeList,
            Kind::Binary(_) => Type::FixedSizeBinary,
        };
        let declared = column
            .custom_metadata()
            .and_then(|pairs| pairs.iter().find(|pair| pair.key() == Some(FIELD)))
            .and_then(|pair| pair.value());
        if declared != Some(field.to_string().as_str()) || column.type_type() != expected {
            return Err(format!("it has a column {declared:?}, expected `{field}`"));
        }
    }
    match footer.recordBatches() {
        Some(blocks) if blocks.len() == 1 => Ok(*blocks.get(0)),
        blocks => Err(format!(
            "it has {} record batches, expected 1",
            blocks.map_or(0, |blocks| blocks.len())
        )),
    }
}

/// The positions of the columns in a message whose body starts at `body`.
fn check_batch(
    message: &[u8],
    fields: &[Field],
    rows: usize,
    body: Range<u64>,
) -> Result<Vec<Range<u64>>, String> {
    let length = match message {
        [0xff, 0xff, 0xff, 0xff, a, b, c, d, ..] => u32::from_le_bytes([*a, *b, *c, *d]) as usize,
        _ => return Err("its record batch does not start with the marker of a message".to_owned()),
    };
    let flatbuffer = message[8..].get(..length).ok_or("the length of its record batch is wrong")?;
    let message: Message<'_> = root_as_message(flatbuffer)
        .map_err(|error| format!("its record batch is damaged: {error}"))?;
    let batch = message
        .header_as_record_batch()
        .ok_or("its record batch is a message of a different kind")?;
    if batch.compression().is_some() {
        return Err("its record batch is compressed".to_owned());
    }
    if batch.length() != rows as i64 {
        return Err(format!("it has {} rows, expected {rows}", batch.length()));
    }
    let expected = Columns::new(fields, rows).ok_or("its columns are too large")?;
    if !batch.nodes().is_some_and(|nodes| nodes.iter().eq(&expected.nodes)) {
        return Err("its columns have other lengths or missing values".to_owned());
    }
    if !batch.buffers().is_some_and(|buffers| buffers.iter().eq(&expected.buffers))
        || body.end - body.start < expected.end
    {
        return Err(format!("its columns are not at the offsets for {rows} rows of these fields"));
    }
    Ok(expected
        .columns
        .into_iter()
        .map(|column| body.start + column.start..body.start + column.end)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> Vec<Field> {
        vec![
            Field::new("image", DType::U8, [3, 5, 7]),
            Field::new("label", DType::I32, []),
            Field::new("boxes", DType::F32, [2, 4]),
            Field::new("real", DType::Bool, [3]),
            Field::new("half", DType::Bf16, []),
            Field::new("nothing", DType::F64, [0]),
        ]
    }

    fn identity() -> PartIdentity {
        PartIdentity {
            key: "abc".into(),
            part: 2,
            first_row: 20,
            samples: 33,
            variants: 1,
            version: "v1".into(),
        }
    }

    fn file_bytes(frame: &Frame) -> Vec<u8> {
        let mut bytes = frame.head.clone();
        bytes.resize(frame.tail_start as usize, 7);
        bytes.extend_from_slice(&frame.tail);
        bytes
    }

    fn find(bytes: &[u8], rows: usize) -> Result<Vec<Range<u64>>, String> {
        let read = |offset: u64, length: usize| Ok(bytes[offset as usize..][..length].to_vec());
        locate(&read, bytes.len() as u64, &fields(), rows, "abc", 2).unwrap()
    }

    #[test]
    fn a_frame_is_found_again_and_aligned() {
        let frame = Frame::new(&fields(), 11, &identity()).unwrap();
        let bytes = file_bytes(&frame);
        assert_eq!(frame.file_bytes(), bytes.len() as u64);
        assert_eq!(find(&bytes, 11).unwrap(), frame.columns);
        assert!(frame.columns.iter().all(|column| column.start % 64 == 0));
        let sizes: Vec<u64> =
            frame.columns.iter().map(|column| column.end - column.start).collect();
        assert_eq!(sizes, [11 * 105, 44, 11 * 32, 33, 22, 0]);
    }

    #[test]
    fn arrow_ipc_reads_it_too() {
        let frame = Frame::new(&fields(), 11, &identity()).unwrap();
        let reader =
            arrow_ipc::reader::FileReader::try_new(std::io::Cursor::new(file_bytes(&frame)), None)
                .unwrap();
        assert_eq!(reader.schema().metadata().get(KEY).map(String::as_str), Some("abc"));
        let batches: Vec<_> = reader.collect::<Result<_, _>>().unwrap();
        assert_eq!((batches.len(), batches[0].num_rows(), batches[0].num_columns()), (1, 11, 6));
    }

    #[test]
    fn any_byte_changed_and_any_cut_is_an_error_or_harmless() {
        let frame = Frame::new(&fields(), 11, &identity()).unwrap();
        let bytes = file_bytes(&frame);
        assert!(find(&bytes, 12).is_err());
        let metadata = (0..frame.head.len()).chain(frame.tail_start as usize..bytes.len());
        for index in metadata {
            for change in [1, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[index] ^= change;
                if let Ok(columns) = find(&damaged, 11) {
                    assert!(columns.iter().all(|column| column.end <= bytes.len() as u64));
                }
            }
        }
        for length in (0..bytes.len()).step_by(7) {
            assert!(find(&bytes[..length], 11).is_err());
        }
    }
}
