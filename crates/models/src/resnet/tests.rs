//! What timm gave for the same folders; torchvision gave the same for the checkpoint in one of them.

use fulmen_nn::weights::{StateDict, Strictness};

use super::*;
use crate::reference::{Expected, compare_in_python, folder};

#[test]
fn folders_of_timm_give_its_logits() {
    for name in ["resnet_basic", "resnet_bottleneck"] {
        let (mut model, expected) = (ResNet::from_folder(folder(name)).unwrap(), Expected::read(name));
        let checkpoint = folder(name).join("checkpoint.pth");
        if checkpoint.exists() {
            model = ResNet::new(model.config().clone()).unwrap();
            let weights = StateDict::read(checkpoint).unwrap().part("state_dict").unwrap();
            weights.rename("module.", "").unwrap().load_into(&model, Strictness::Strict).unwrap();
            model.eval();
        }
        let pictures = expected.tensor("pixel_values");
        let logits = model.forward(&pictures);
        model.train();
        let train_logits = model.forward(&pictures);
        let running_mean = model.layer4[0].bn2.buffers()[0].1.get();
        expected.check(&[("logits", &logits), ("train_logits", &train_logits), ("running_mean", &running_mean)]);
    }
}

#[test]
#[ignore = "asks Python: FULMEN_PYTHON=python cargo test -p fulmen-models --lib in_python -- --ignored"]
fn written_weights_give_the_same_in_python() {
    for name in ["resnet_basic", "resnet_bottleneck"] {
        compare_in_python(&ResNet::from_folder(folder(name)).unwrap(), name, "resnet.py");
    }
}
