//! MNIST's digits as a pipeline makes them.
//!
//! Not here: reading the files (`Mnist` of `fulmen-data`).

use crate::{Picture, Pictures};
use fulmen_data::{DType, Dataset, Error, Field, Fingerprint, Mnist, Result, Sample};

const SIDE: usize = 28;

/// The fields `image`, as a pipeline makes it, and `label`, `i32[]`.
pub(crate) struct MnistPictures {
    mnist: Mnist,
    pictures: Pictures,
    fields: Vec<Field>,
}

impl MnistPictures {
    pub(crate) fn new(mnist: Mnist, pictures: Pictures) -> Result<MnistPictures> {
        let pictures = pictures.source_size(SIDE);
        let fields = vec![pictures.field("image")?, Field::new("label", DType::I32, [])];
        Ok(MnistPictures { mnist, pictures, fields })
    }
}

impl Dataset for MnistPictures {
    fn len(&self) -> usize {
        self.mnist.len()
    }

    fn fields(&self) -> Vec<Field> {
        self.fields.clone()
    }

    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        let (Some(pixels), Some(&label)) = (self.mnist.image(index), self.mnist.labels().get(index)) else {
            return Err(Error::usage(format!("there is no sample {index}")));
        };
        self.pictures.write_picture(Picture::new(SIDE, SIDE, 1, pixels.to_vec())?, sample, 0)?;
        sample.write_value(1, label)
    }

    fn origin(&self, index: usize) -> Option<String> {
        self.mnist.origin(index)
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("pictures", self.pictures.to_string());
        self.mnist.fingerprint(fingerprint)
    }
}
