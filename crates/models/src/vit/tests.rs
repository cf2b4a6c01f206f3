//! Comparison with the results of transformers for the same folder.

use super::*;
use crate::reference::{ExpectedValues, compare_in_python, folder};

#[test]
fn a_folder_of_transformers_gives_its_logits() {
    let mut model = ViT::from_folder(folder("vit")).unwrap();
    let expected = ExpectedValues::read("vit");
    let logits = model.forward(expected.tensor("pixel_values"));
    model.gradient_checkpointing = true;
    let large = model.forward(expected.tensor("large"));
    expected.check(&[("logits", &logits), ("large_logits", &large)]);
}

#[test]
#[ignore = "asks Python: PYTHON=python cargo test -p fulmen-models --lib in_python -- --ignored"]
fn written_weights_give_the_same_in_python() {
    compare_in_python(&ViT::from_folder(folder("vit")).unwrap(), "vit", "vit.py");
}

#[test]
fn a_new_head_begins_anew_and_the_rest_is_kept() {
    let model =
        ViT::from_folder_with(folder("vit"), |config| config.labels = Labels::new(["a", "b", "c"]))
            .unwrap();
    let unset: Vec<_> =
        model.parameters().into_iter().filter(|(_, p)| !p.is_set()).map(|(name, _)| name).collect();
    assert_eq!(unset, ["classifier.weight", "classifier.bias"]);
    assert_eq!(model.classifier.out_features(), 3);
}
