//! What transformers gave for the same folder.

use super::*;
use crate::reference::{Expected, compare_in_python, folder};

#[test]
fn a_folder_of_transformers_gives_its_logits() {
    let (model, expected) = (ViT::from_folder(folder("vit")).unwrap(), Expected::read("vit"));
    let logits = model.forward(expected.tensor("pixel_values"));
    let large = model.forward(expected.tensor("large"));
    expected.check(&[("logits", &logits), ("large_logits", &large)]);
}

#[test]
#[ignore = "asks Python: FULMEN_PYTHON=python cargo test -p fulmen-models --lib in_python -- --ignored"]
fn written_weights_give_the_same_in_python() {
    compare_in_python(&ViT::from_folder(folder("vit")).unwrap(), "vit", "vit.py");
}
