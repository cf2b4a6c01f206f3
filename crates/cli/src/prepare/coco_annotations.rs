//! COCO's annotation files.
//!
//! Out of scope: the images (`coco`).

use std::collections::HashMap;
use std::io::BufReader;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::manifest::Class;
use super::zip_index::ZipIndex;
use fulmen_data::{Error, Result};

/// The fields of `instances_*.json` that the shards need. Numbers in boxes and outlines keep their
/// original text.
#[derive(Deserialize)]
struct Instances {
    images: Vec<Image>,
    annotations: Vec<Instance>,
    categories: Vec<Category>,
}

#[derive(Clone, Deserialize)]
pub(crate) struct Image {
    pub(crate) id: u64,
    pub(crate) file_name: String,
    pub(crate) width: u64,
    pub(crate) height: u64,
}

#[derive(Deserialize)]
struct Instance {
    id: u64,
    image_id: u64,
    category_id: u64,
    bbox: Box<RawValue>,
    area: Box<RawValue>,
    #[serde(default)]
    iscrowd: u8,
    #[serde(default)]
    segmentation: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Category {
    id: u64,
    name: String,
}

/// The fields of `captions_*.json` that the shards need.
#[derive(Deserialize)]
struct Captions {
    annotations: Vec<Caption>,
}

#[derive(Deserialize)]
struct Caption {
    id: u64,
    image_id: u64,
    caption: String,
}

/// The content of a sample's `.json`.
#[derive(Serialize)]
struct SampleJson<'a> {
    image_id: u64,
    file_name: &'a str,
    width: u64,
    height: u64,
    annotations: Vec<InstanceJson<'a>>,
    captions: Vec<&'a str>,
}

#[derive(Serialize)]
struct InstanceJson<'a> {
    id: u64,
    label: usize,
    category_id: u64,
    bbox: &'a RawValue,
    area: &'a RawValue,
    iscrowd: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    segmentation: Option<&'a RawValue>,
}

/// The annotations of a split's images.
pub(crate) struct Annotations {
    /// The images, sorted by number.
    pub(crate) images: Vec<Image>,
    pub(crate) classes: Vec<Class>,
    /// The instances, sorted by image and by number.
    instances: Vec<Instance>,
    captions: Vec<Caption>,
    /// The index of each category.
    labels: HashMap<u64, usize>,
}

impl Annotations {
    /// Reads the annotations of a split, `train2017` or `val2017`.
    pub(crate) fn read(zip: &ZipIndex, split: &str) -> Result<Annotations> {
        let name = format!("annotations/instances_{split}.json");
        let Instances { mut images, annotations: mut instances, mut categories } =
            read_json(zip, &name)?;
        let Captions { annotations: mut captions } =
            read_json(zip, &format!("annotations/captions_{split}.json"))?;
        images.sort_by_key(|image| image.id);
        instances.sort_by_key(|instance| (instance.image_id, instance.id));
        captions.sort_by_key(|caption| (caption.image_id, caption.id));
        categories.sort_by_key(|category| category.id);
        let labels: HashMap<u64, usize> =
            categories.iter().map(|category| category.id).zip(0..).collect();
        let wrong = |message: String| Error::file(zip.path(), format!("entry {name}: {message}"));
        if let Some(pair) = images.windows(2).find(|pair| pair[0].id == pair[1].id) {
            return Err(wrong(format!("there are two images {}", pair[0].id)));
        }
        let known = |id: u64| images.binary_search_by_key(&id, |image| image.id).is_ok();
        for instance in &instances {
            if !labels.contains_key(&instance.category_id) {
                return Err(wrong(format!(
                    "annotation {}: there is no category {}",
                    instance.id, instance.category_id
                )));
            }
            if !known(instance.image_id) {
                return Err(wrong(format!(
                    "annotation {}: there is no image {}",
                    instance.id, instance.image_id
                )));
            }
        }
        if let Some(caption) = captions.iter().find(|caption| !known(caption.image_id)) {
            return Err(wrong(format!(
                "the caption {} belongs to the image {}, which is not in this entry",
                caption.id, caption.image_id
            )));
        }
        let class = |(index, category): (usize, &Category)| Class {
            index,
            id: category.id.to_string(),
            name: category.name.clone(),
        };
        let classes = categories.iter().enumerate().map(class).collect();
        Ok(Annotations { images, classes, instances, captions, labels })
    }

    /// The `.json` of an image.
    pub(crate) fn json(&self, image: &Image) -> Result<Vec<u8>> {
        let instances = self.instances.partition_point(|instance| instance.image_id < image.id)
            ..self.instances.partition_point(|instance| instance.image_id <= image.id);
        let captions = self.captions.partition_point(|caption| caption.image_id < image.id)
            ..self.captions.partition_point(|caption| caption.image_id <= image.id);
        let sample = SampleJson {
            image_id: image.id,
            file_name: &image.file_name,
            width: image.width,
            height: image.height,
            annotations: self.instances[instances]
                .iter()
                .map(|instance| self.instance_json(instance))
                .collect(),
            captions: self.captions[captions]
                .iter()
                .map(|caption| caption.caption.as_str())
                .collect(),
        };
        serde_json::to_vec(&sample).map_err(|source| Error::runtime("writing JSON", source))
    }
}

impl Annotations {
    fn instance_json<'a>(&'a self, instance: &'a Instance) -> InstanceJson<'a> {
        InstanceJson {
            id: instance.id,
            label: self.labels.get(&instance.category_id).copied().unwrap_or_default(),
            category_id: instance.category_id,
            bbox: &instance.bbox,
            area: &instance.area,
            iscrowd: instance.iscrowd,
            segmentation: instance.segmentation.as_deref(),
        }
    }
}

fn read_json<T: DeserializeOwned>(zip: &ZipIndex, name: &str) -> Result<T> {
    let entry = zip.find(name).ok_or_else(|| {
        Error::file(
            zip.path(),
            format!("there is no entry {name}; expected COCO's annotations of 2017"),
        )
    })?;
    zip.read_with(entry, |reader| {
        serde_json::from_reader(BufReader::with_capacity(1 << 20, reader))
    })
}
