//! Comparison with the results of timm and torchvision for the same weights.

use fulmen_nn::weights::save_weights;

use super::*;
use crate::reference::{ExpectedValues, compare_in_python, folder};

#[test]
fn a_folder_of_timm_gives_its_logits() {
    let name = "resnet_bottleneck";
    let model = ResNet::from_folder(folder(name)).unwrap();
    let expected = ExpectedValues::read(name);
    expected.check(&[("logits", &model.forward(expected.tensor("pixel_values")))]);
}

#[test]
fn a_checkpoint_of_torchvision_gives_its_logits_and_statistics() {
    let name = "resnet_basic";
    let config = ResNet::from_folder(folder(name)).unwrap().config().clone();
    let model = ResNet::new(config).unwrap();
    let expected = ExpectedValues::read(name);
    let weights =
        StateDict::read(folder(name).join("checkpoint.pth")).unwrap().part("state_dict").unwrap();
    weights.rename("module.", "").unwrap().load_into(&model, Strictness::Strict).unwrap();
    let images = expected.tensor("pixel_values");
    model.eval();
    let logits = model.forward(&images);
    model.train();
    let train_logits = model.forward(&images);
    let running_mean = model.layer4[0].bn2.buffers()[0].1.get();
    expected.check(&[
        ("logits", &logits),
        ("train_logits", &train_logits),
        ("running_mean", &running_mean),
    ]);
}

#[test]
fn weights_tell_which_resnet_they_are_of() {
    /// As in a checkpoint: with other values besides the model's.
    #[derive(Module)]
    struct Training {
        #[module(flatten)]
        model: ResNet,
        trainer: Linear,
    }
    let saved = tempfile::tempdir().unwrap();
    let path = saved.path().join("weights.safetensors");
    for name in ["resnet_basic", "resnet_bottleneck"] {
        let model = ResNet::from_folder(folder(name)).unwrap();
        let training = Training { model: model.clone(), trainer: Linear::new(1, 1) };
        training.initialize(0);
        save_weights(&training, &path).unwrap();
        let loaded = ResNet::from_weights(&path).unwrap();
        assert_eq!(
            *loaded.config(),
            Config { pretrained_cfg: Map::new(), other: Map::new(), ..model.config().clone() }
        );
        let weight =
            |model: &ResNet| model.fc.weight.get().eval().unwrap().to_vec::<f32>().unwrap();
        assert_eq!(weight(&loaded), weight(&model));
    }
    let linear = Linear::new(1, 1);
    linear.initialize(0);
    save_weights(&linear, &path).unwrap();
    let text = ResNet::from_weights(&path).unwrap_err().to_string();
    assert!(text.contains("weights.safetensors: not the weights of a ResNet"), "{text}");
}

#[test]
#[ignore = "asks Python: PYTHON=python cargo test -p fulmen-models --lib in_python -- --ignored"]
fn written_weights_give_the_same_in_python() {
    for name in ["resnet_basic", "resnet_bottleneck"] {
        compare_in_python(&ResNet::from_folder(folder(name)).unwrap(), name, "resnet.py");
    }
}

#[test]
fn an_argument_of_timm_that_makes_another_model_is_refused() {
    let saved = tempfile::tempdir().unwrap();
    let config = r#"{ "architecture": "resnet18", "num_classes": 5, "model_args": { "output_stride": 8, "cardinality": 1.0 } }"#;
    let file = saved.path().join("config.json");
    std::fs::write(&file, config).unwrap();
    let text = ResNet::from_folder(saved.path()).err().unwrap().to_string();
    let expected = "config.json: `model_args` is {\"output_stride\":8}; only {} is supported";
    assert!(text.contains(expected), "{text}");
    let pooled = r#"{ "architecture": "resnet18", "pretrained_cfg": { "global_pool": "max" } }"#;
    std::fs::write(&file, pooled).unwrap();
    let text = ResNet::from_folder(saved.path()).err().unwrap().to_string();
    assert!(text.contains("`global_pool` is \"max\"; only \"avg\" is supported"), "{text}");
}

#[test]
fn the_description_of_the_weights_counts_where_the_arguments_are_silent() {
    let saved = tempfile::tempdir().unwrap();
    let config = r#"{ "architecture": "resnet18", "pretrained_cfg": { "num_classes": 7, "input_size": [1, 28, 28] } }"#;
    std::fs::write(saved.path().join("config.json"), config).unwrap();
    let config = ResNet::config_from_folder(saved.path()).unwrap();
    assert_eq!((config.num_classes, config.in_chans), (7, 1));
    assert_eq!(config.layers, Config::resnet18().layers);
}

#[test]
fn a_description_of_another_type_is_refused_with_its_key() {
    let saved = tempfile::tempdir().unwrap();
    for (config, expected) in [
        (
            r#"{"pretrained_cfg": {"num_classes": "7"}}"#,
            "`pretrained_cfg.num_classes` is \"7\", expected a whole number from 0",
        ),
        (
            r#"{"pretrained_cfg": {"input_size": [1.5, 28, 28]}}"#,
            "`pretrained_cfg.input_size` is [1.5,28,28]: invalid type: floating point `1.5`",
        ),
        (
            r#"{"model_args": {"in_chans": "3"}}"#,
            "`model_args.in_chans` is \"3\", expected a whole number from 0",
        ),
        (r#"{"num_classes": true}"#, "`num_classes` is true, expected a whole number from 0"),
    ] {
        let config = config.replacen('{', r#"{"architecture": "resnet18", "#, 1);
        std::fs::write(saved.path().join("config.json"), config).unwrap();
        let text = ResNet::config_from_folder(saved.path()).unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
    }
    let config = r#"{"architecture": "resnet18", "pretrained_cfg": {"num_classes": null}}"#;
    std::fs::write(saved.path().join("config.json"), config).unwrap();
    assert_eq!(ResNet::config_from_folder(saved.path()).unwrap().num_classes, 1000);
}

#[test]
fn other_channels_of_the_stem_are_kept() {
    let saved = tempfile::tempdir().unwrap();
    let config =
        Config { stem_channels: 8, channels: [8; 4], num_classes: 2, ..Config::resnet18() };
    let model = ResNet::new(config.clone()).unwrap();
    model.initialize(0);
    model.save_pretrained(saved.path()).unwrap();
    let loaded = ResNet::from_folder(saved.path()).unwrap();
    assert_eq!(loaded.config(), &config);
    assert_eq!(loaded.conv1.weight.get().shape()[..], [8, 3, 7, 7]);
}

/// The numbers of parameters are those of torchvision's `ResNet…_Weights` (`num_params`).
#[test]
fn the_resnets_that_the_book_names_are_torchvisions() {
    let mut found: Vec<usize> = Vec::new();
    for config in [
        Config::resnet18(),
        Config::resnet34(),
        Config::resnet50(),
        Config::resnet101(),
        Config::resnet152(),
    ] {
        let model = ResNet::new(config).unwrap();
        found.push(model.parameters().iter().map(|(_, p)| p.ty().shape.num_elements()).sum());
    }
    let expected: [usize; 5] = [11_689_512, 21_797_672, 25_557_032, 44_549_160, 60_192_808];
    assert_eq!(found, expected);
}
