//! Text files as blocks of records. An index of the blocks allows random access to records.
//!
//! Out of scope: finding and decoding records (`lines`, `csv_records`).

use std::borrow::Cow;
use std::io::BufRead;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::SchemaRef;

use super::block_reader::{Block, BlockSource, RowNumbers, RowOrigin};
use super::source_file::{SourceFile, fingerprint_inputs};
use fulmen_data::{Fingerprint, Result};
use fulmen_data::{internal::cores, internal::in_parallel};

/// By default, files of up to this size in total are kept in memory.
pub(crate) const MAX_KEPT_BYTES: u64 = 64 << 20;

/// Longer records are rejected, because a file without line ends would be read as a single record.
pub(crate) const MAX_RECORD_BYTES: u64 = 1 << 30;

/// A block ends with the record that reaches this many bytes. Larger blocks make random access to a
/// table larger than the cache slower, because each row requires decoding a block. Smaller blocks
/// take more memory, about 40 bytes each.
pub(crate) const BLOCK: u64 = 8 << 10;

/// Converts the records of a text file to rows.
pub(crate) trait Format: Send + Sync + Sized + 'static {
    /// Decodes the records in `bytes`; the first one starts in line `line`.
    fn decode(&self, file: &Arc<SourceFile>, line: u64, bytes: &[u8]) -> Result<Block>;

    /// The same format with only these columns.
    fn select(&self, columns: &[usize]) -> Self;

    fn fingerprint(&self, fingerprint: &mut Fingerprint);
}

/// A file with the index of its blocks.
pub(crate) struct IndexedFile {
    pub(crate) input: Arc<SourceFile>,
    /// The content of the file, if it is small.
    content: Option<Vec<u8>>,
    parts: Vec<Part>,
}

/// A block: its offset, its first line, and its number of rows.
struct Part {
    start: u64,
    line: u64,
    rows: u32,
    /// Whether each row takes one line.
    in_lines: bool,
}

impl IndexedFile {
    /// Adds the next record, which starts at byte `start`, in line `line`.
    pub(crate) fn push(&mut self, start: u64, line: u64, block: u64) {
        match self.parts.last_mut().filter(|part| start - part.start < block) {
            Some(part) => {
                part.in_lines &= line == part.line + u64::from(part.rows);
                part.rows += 1;
            }
            None => self.parts.push(Part { start, line, rows: 1, in_lines: true }),
        }
    }

    fn read(&self, number: usize) -> Result<Cow<'_, [u8]>> {
        let Part { start, line, .. } = self.parts[number];
        let end = self.parts.get(number + 1).map_or(self.input.size(), |next| next.start);
        if end - start > MAX_RECORD_BYTES + BLOCK {
            return Err(self.input.error(format!(
                "line {line}: a record at or after this line has more than {MAX_RECORD_BYTES} bytes; are line ends missing?"
            )));
        }
        match &self.content {
            Some(content) => Ok(content[start as usize..end as usize].into()),
            None => Ok(self.input.read_range(start, (end - start) as usize)?.into()),
        }
    }
}

/// Indexes the files with `find`, which passes records to [`IndexedFile::push`]. The files are kept
/// in memory if they have up to `keep_below` bytes in total.
pub(crate) fn index<T: Send>(
    inputs: &[Arc<SourceFile>],
    keep_below: u64,
    find: impl Fn(&mut IndexedFile, &mut dyn BufRead) -> Result<T> + Sync,
) -> Result<Vec<(IndexedFile, T)>> {
    let keep = inputs.iter().map(|input| input.size()).fold(0, u64::saturating_add) <= keep_below;
    in_parallel(inputs, cores(), |input| {
        let content = if keep { Some(input.read_range(0, input.size() as usize)?) } else { None };
        let mut file = IndexedFile { input: Arc::clone(input), content: None, parts: Vec::new() };
        let value = match &content {
            Some(content) => find(&mut file, &mut &content[..])?,
            None => find(&mut file, &mut input.reader()?)?,
        };
        file.parts.shrink_to_fit();
        Ok((IndexedFile { content, ..file }, value))
    })
}

/// The blocks of several files.
pub(crate) struct TextBlocks<F> {
    files: Arc<Vec<IndexedFile>>,
    /// For each block, its file and its number in the file.
    blocks: Arc<Vec<(u32, u32)>>,
    format: F,
}

impl<F: Format> TextBlocks<F> {
    pub(crate) fn new(files: Vec<IndexedFile>, format: F) -> TextBlocks<F> {
        let blocks = files.iter().enumerate().flat_map(|(number, file)| {
            (0..file.parts.len()).map(move |part| (number as u32, part as u32))
        });
        TextBlocks { blocks: Arc::new(blocks.collect()), files: Arc::new(files), format }
    }

    fn find(&self, block: usize) -> (&IndexedFile, usize) {
        let (file, part) = self.blocks[block];
        (&self.files[file as usize], part as usize)
    }
}

impl<F: Format> BlockSource for TextBlocks<F> {
    fn block_rows(&self) -> Vec<usize> {
        self.files
            .iter()
            .flat_map(|file| file.parts.iter().map(|part| part.rows as usize))
            .collect()
    }

    fn row_origin(&self, block: usize) -> Option<RowOrigin> {
        let (file, part) = self.find(block);
        let Part { line, in_lines, .. } = file.parts[part];
        in_lines.then(|| RowOrigin::new(&file.input, RowNumbers::Lines(line)))
    }

    fn decode(&self, block: usize) -> Result<Block> {
        let (file, part) = self.find(block);
        self.format.decode(&file.input, file.parts[part].line, &file.read(part)?)
    }

    fn select(&self, columns: &[usize]) -> Result<Arc<dyn BlockSource>> {
        let files = Arc::clone(&self.files);
        let blocks = Arc::clone(&self.blocks);
        Ok(Arc::new(TextBlocks { files, blocks, format: self.format.select(columns) }))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        self.format.fingerprint(fingerprint);
        fingerprint_inputs(self.files.iter().map(|file| &*file.input), fingerprint)
    }
}

/// Makes a block of the rows in these lines.
pub(crate) fn block(
    file: &Arc<SourceFile>,
    lines: Vec<u64>,
    not_utf8: Vec<(usize, usize)>,
    schema: &SchemaRef,
    columns: Vec<ArrayRef>,
) -> Result<Block> {
    let options = RecordBatchOptions::new().with_row_count(Some(lines.len()));
    let batch = RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
        .map_err(|error| file.error(error.to_string()))?;
    let bytes = batch.get_array_memory_size();
    let in_lines = lines.windows(2).all(|pair| pair[1] == pair[0] + 1);
    let numbers = match lines.first() {
        Some(&first) if in_lines => RowNumbers::Lines(first),
        _ => RowNumbers::Each(lines),
    };
    Ok(Block::new(batch, RowOrigin { not_utf8, ..RowOrigin::new(file, numbers) }, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_ends_with_the_record_that_fills_it_and_knows_whether_each_row_takes_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, "a\nb\n\nc\nd\n").unwrap();
        let input = SourceFile::open_all(&[path.into()]).unwrap().remove(0);
        for keep_below in [0, 100] {
            let find = |file: &mut IndexedFile, _: &mut dyn BufRead| {
                [(0, 1), (2, 2), (5, 4), (7, 5)]
                    .into_iter()
                    .for_each(|(start, line)| file.push(start, line, 5));
                Ok(())
            };
            let (file, ()) =
                index(std::slice::from_ref(&input), keep_below, find).unwrap().remove(0);
            assert_eq!(
                file.parts.iter().map(|part| (part.rows, part.line)).collect::<Vec<_>>(),
                [(2, 1), (2, 4)]
            );
            assert_eq!(
                (&*file.read(0).unwrap(), &*file.read(1).unwrap()),
                (&b"a\nb\n\n"[..], &b"c\nd\n"[..])
            );
            assert!(file.parts.iter().all(|part| part.in_lines));
        }
        let mut file = IndexedFile { input, content: None, parts: Vec::new() };
        [(0, 1), (5, 4)].into_iter().for_each(|(start, line)| file.push(start, line, 9));
        assert!(!file.parts[0].in_lines);
    }
}
