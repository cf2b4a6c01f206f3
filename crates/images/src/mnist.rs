//! MNIST's digits, passed through a pipeline.
//!
//! Out of scope: reading the files (`Mnist` of `fulmen-data`).

use crate::{Image, ImagePipeline};
use fulmen_data::{DType, Dataset, Error, Field, Fingerprint, Mnist, Result, Sample};

const SIDE: usize = 28;

/// The fields `image`, the result of a pipeline, and `label`, `i32[]`.
pub(crate) struct MnistImages {
    mnist: Mnist,
    pipeline: ImagePipeline,
    fields: Vec<Field>,
}

impl MnistImages {
    pub(crate) fn new(mnist: Mnist, pipeline: ImagePipeline) -> Result<MnistImages> {
        let pipeline = pipeline.source_size(SIDE);
        let fields = vec![pipeline.field("image")?, Field::new("label", DType::I32, [])];
        Ok(MnistImages { mnist, pipeline, fields })
    }
}

impl Dataset for MnistImages {
    fn len(&self) -> usize {
        self.mnist.len()
    }

    fn fields(&self) -> Vec<Field> {
        self.fields.clone()
    }

    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        let (Some(pixels), Some(&label)) =
            (self.mnist.image(index), self.mnist.labels().get(index))
        else {
            return Err(Error::usage(format!("there is no sample {index}")));
        };
        self.pipeline.write_image(Image::new(SIDE, SIDE, 1, pixels.to_vec())?, sample, 0)?;
        sample.write_value(1, label)
    }

    fn origin(&self, index: usize) -> Option<String> {
        self.mnist.origin(index)
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("images", self.pipeline.to_string());
        self.mnist.fingerprint(fingerprint)
    }
}
