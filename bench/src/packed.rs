//! [`PackedDocuments`]: synthetic documents that are packed into samples, and the files with which a
//! peer starts from the same weights and takes the same batches.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use fulmen::data::TensorDataset;
use fulmen::nn::safetensors;
use fulmen::nn::weights::save_weights;
use fulmen::prelude::*;
use tempfile::TempDir;

use crate::synthetic::Random;
use crate::workload::{ModelVisitor, Workload};

/// The lengths of the shortest and the longest document. The last of a sample may be shorter.
const DOCUMENT: [usize; 2] = [64, 960];

/// Samples of documents side by side: i32 arrays `[samples, length]`.
pub(crate) struct PackedDocuments {
    samples: usize,
    length: usize,
    x: Vec<i32>,
    y: Vec<i32>,
    /// The number of the document in its sample, from 1.
    segment_ids: Vec<i32>,
    /// The position in the document.
    positions: Vec<i32>,
}

impl PackedDocuments {
    /// Documents of words that count upwards by some stride. Of a document that does not fit, the
    /// rest is cut off.
    pub(crate) fn new(samples: usize, length: usize, words: usize) -> PackedDocuments {
        let mut all = PackedDocuments {
            samples,
            length,
            x: Vec::new(),
            y: Vec::new(),
            segment_ids: Vec::new(),
            positions: Vec::new(),
        };
        let mut random = Random(1);
        for _ in 0..samples {
            let mut left = length;
            let mut number = 1;
            while left > 0 {
                let [shortest, longest] = DOCUMENT;
                let size = (shortest + random.below(longest - shortest + 1)).min(left);
                let start = random.below(words);
                let stride = 1 + random.below(7);
                let word = |index: usize| ((start + stride * index) % words) as i32;
                all.x.extend((0..size).map(word));
                all.y.extend((1..=size).map(word));
                all.segment_ids.extend(std::iter::repeat_n(number, size));
                all.positions.extend(0..size as i32);
                left -= size;
                number += 1;
            }
        }
        all
    }

    fn arrays(&self) -> [(&'static str, &[i32]); 4] {
        [
            ("x", &self.x),
            ("y", &self.y),
            ("segment_ids", &self.segment_ids),
            ("positions", &self.positions),
        ]
    }

    pub(crate) fn dataset(&self) -> Result<TensorDataset, Box<dyn Error>> {
        let mut data = TensorDataset::builder();
        for (name, array) in self.arrays() {
            data = data.array(name, [self.samples, self.length], array);
        }
        Ok(data.build()?)
    }
}

/// A folder with a workload's first weights and its data, `weights.safetensors` and
/// `data.safetensors`; `None` if the sides of the workload start differently.
pub(crate) fn write_start(workload: &Workload) -> Result<Option<TempDir>, Box<dyn Error>> {
    if !workload.has_same_start() {
        return Ok(None);
    }
    let folder = tempfile::tempdir()?;
    workload.with_model(SaveWeights(&folder.path().join("weights.safetensors")))?;
    let documents = workload.documents();
    let shape = [documents.samples, documents.length];
    let arrays = documents.arrays().map(|(name, array)| {
        Literal::from_slice(array, shape).map(|literal| (name.to_owned(), literal))
    });
    let arrays = arrays.into_iter().collect::<Result<Vec<_>, _>>()?;
    safetensors::write(folder.path().join("data.safetensors"), &arrays, &BTreeMap::new())?;
    Ok(Some(folder))
}

/// Saves the weights of a model to a file.
struct SaveWeights<'a>(&'a Path);

impl ModelVisitor for SaveWeights<'_> {
    type Output = fulmen::nn::Result<()>;

    fn visit<M: TrainingModule>(self, model: &M) -> Self::Output {
        save_weights(model, self.0)
    }
}
