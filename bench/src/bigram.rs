//! A bigram table of a text, with the split of `examples/gpt`: the baseline for a language model.

// The example alone defines the split.
#[expect(dead_code, reason = "the example uses the rest to decode")]
#[path = "../../examples/gpt/src/text.rs"]
mod text;

use std::error::Error;
use std::path::Path;

use fulmen::prelude::*;
use text::{Split, Vocabulary};

const BYTES: usize = 256;

/// The default of the example.
const LENGTH: usize = 128;

/// The mean loss on the test part, in nats per byte. Rare bigrams are smoothed with the frequency
/// of the next byte alone. The validation part determines the weight.
pub(crate) fn test_loss(text: &Path) -> Result<f64, Box<dyn Error>> {
    let [train, validation, test] =
        [Split::Train, Split::Validation, Split::Test].map(|part| pairs(text, part));
    let table = Table::count(&train?);
    let validation = validation?;
    let test = test?;
    let (_, weight) = [0.1, 0.3, 1.0, 3.0, 10.0, 30.0]
        .map(|weight| (table.loss(&validation, weight), weight))
        .into_iter()
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .ok_or("there is no weight to try")?;
    Ok(table.loss(&test, weight))
}

/// Each byte with the next one.
fn pairs(text: &Path, split: Split) -> Result<Vec<(usize, usize)>, Box<dyn Error>> {
    let data = text::samples(text, &Vocabulary::Bytes, LENGTH, split).map_err(|e| e.to_string())?;
    let mut pairs = Vec::new();
    for batch in DataLoader::builder(data).batch_size(64).build()?.epoch(0) {
        let batch = batch?;
        let field = |name: &str| {
            batch.field_index(name).ok_or_else(|| format!("the samples have no {name}"))
        };
        let inputs = field("input_ids")?;
        let labels = field("labels")?;
        let bytes = batch
            .values::<i32>(inputs)?
            .iter()
            .zip(batch.values::<i32>(labels)?)
            .take(batch.valid() * LENGTH);
        pairs.extend(
            bytes.filter(|pair| *pair.1 >= 0).map(|(&byte, &next)| (byte as usize, next as usize)),
        );
    }
    Ok(pairs)
}

/// The number of times that each byte followed each other byte, and any byte.
struct Table {
    pairs: Vec<[f64; BYTES]>,
    bytes: [f64; BYTES],
}

impl Table {
    fn count(pairs: &[(usize, usize)]) -> Table {
        let mut table = Table { pairs: vec![[0.0; BYTES]; BYTES], bytes: [0.0; BYTES] };
        for &(byte, next) in pairs {
            table.pairs[byte][next] += 1.0;
            table.bytes[next] += 1.0;
        }
        table
    }

    /// The mean loss if the frequency of a byte alone counts like `weight` observed bigrams.
    fn loss(&self, pairs: &[(usize, usize)], weight: f64) -> f64 {
        let all = self.bytes.iter().sum::<f64>() + BYTES as f64;
        let totals: Vec<f64> = self.pairs.iter().map(|row| row.iter().sum()).collect();
        let losses = pairs.iter().map(|&(byte, next)| {
            let any = (self.bytes[next] + 1.0) / all;
            -((self.pairs[byte][next] + weight * any) / (totals[byte] + weight)).ln()
        });
        losses.sum::<f64>() / pairs.len() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_book_is_far_from_random() {
        let loss =
            test_loss(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src"))).unwrap();
        assert!((2.0..3.5).contains(&loss), "{loss}");
    }

    #[test]
    fn a_table_predicts_a_byte_that_always_follows() {
        let text: Vec<usize> = b"abababab".iter().map(|&byte| usize::from(byte)).collect();
        let pairs: Vec<_> = text.windows(2).map(|pair| (pair[0], pair[1])).collect();
        let table = Table::count(&pairs);
        assert!(table.loss(&pairs, 1e-9) < 1e-6);
        // `b` after `a`: 4 of 4 bigrams, and 5 of 263 counts of a byte alone.
        let loss = table.loss(&[(usize::from(b'a'), usize::from(b'b'))], 1.0);
        assert!((loss + ((4.0 + 5.0 / 263.0) / 5.0_f64).ln()).abs() < 1e-12);
    }
}
