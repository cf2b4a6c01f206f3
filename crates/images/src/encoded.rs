//! Encoded images, and the dataset that decodes them.
//!
//! Out of scope: the sources of the files, and the pipeline (`pipeline`).

use super::pipeline::ImagePipeline;
use fulmen_data::{DType, Dataset, Field, Fingerprint, Result, Sample, Source};

/// The bytes of an image file, and its class.
#[derive(Clone, Debug)]
pub struct EncodedImage {
    /// A JPEG, PNG or WebP file.
    pub bytes: Vec<u8>,
    /// The number of its class.
    pub label: i32,
}

/// Images of a source, decoded and augmented: the fields `image`, `u8[channels, height, width]`,
/// and `label`, `i32[]`.
///
/// ```no_run
/// use fulmen_data::DataLoader;
/// use fulmen_images::{ImageFolder, ImagePipeline};
///
/// let train = ImageFolder::open("imagenet/train")?.decode(ImagePipeline::rgb().random_resized_crop(224).horizontal_flip(0.5))?;
/// let loader = DataLoader::builder(train).batch_size(64).shuffle(true).num_workers(8).build()?;
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ImageDataset<S> {
    source: S,
    pipeline: ImagePipeline,
    fields: Vec<Field>,
}

impl<S: Source<Item = EncodedImage>> ImageDataset<S> {
    /// Passes the images of a source through a pipeline.
    ///
    /// # Errors
    /// Those of [`ImagePipeline::field`].
    pub fn new(source: S, pipeline: ImagePipeline) -> Result<ImageDataset<S>> {
        let fields = vec![pipeline.field("image")?, Field::new("label", DType::I32, [])];
        Ok(ImageDataset { source, pipeline, fields })
    }

    /// The source of the files.
    pub fn source(&self) -> &S {
        &self.source
    }
}

impl<S: Source<Item = EncodedImage>> Dataset for ImageDataset<S> {
    fn len(&self) -> usize {
        self.source.len()
    }

    fn fields(&self) -> Vec<Field> {
        self.fields.clone()
    }

    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        let image = sample.timed(fulmen_data::Stage::Read, || self.source.get(index))?;
        self.pipeline.write(&image.bytes, sample, 0)?;
        sample.write_value(1, image.label)
    }

    fn origin(&self, index: usize) -> Option<String> {
        Some(self.source.origin(index))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("images", self.pipeline.to_string());
        fingerprint.add("JPEG decoder", super::jpeg_decoder());
        self.source.fingerprint(fingerprint)
    }
}
