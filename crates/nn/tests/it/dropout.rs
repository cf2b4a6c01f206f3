//! Dropout: which elements are dropped together, and the mean and variance of the result.

use crate::common::{assert_close, fault, values};
use fulmen_nn::{AlphaDropout, DropPath, Dropout1d, Dropout2d, Dropout3d, Forward, Module, Rrelu};
use fulmen_tensor::{DType, Tensor, random};

fn ones(shape: &[usize]) -> Tensor {
    Tensor::ones(DType::F32, shape)
}

/// The share of groups of `size` elements that are dropped; each is dropped or kept as a whole, and
/// kept ones are `scaled`.
#[track_caller]
fn dropped(layer: &dyn Forward, shape: &[usize], size: usize, scaled: f64) -> f64 {
    layer.set_random_key(&random::key(3));
    let all = values(&layer.forward(&ones(shape)));
    let groups: Vec<&[f64]> = all.chunks(size).collect();
    let share = groups.iter().filter(|group| group[0] == 0.0).count() as f64 / groups.len() as f64;
    for group in groups {
        assert!(group.iter().all(|x| x == &group[0]), "{group:?} is torn");
        assert!(group[0] == 0.0 || (group[0] - scaled).abs() < 1e-6, "{group:?}");
    }
    share
}

#[test]
fn whole_channels_and_whole_samples_are_dropped() {
    let check = |share: f64| assert!((share - 0.25).abs() < 0.06, "{share}");
    check(dropped(&Dropout1d::new(0.25), &[20, 50, 3], 3, 4.0 / 3.0));
    check(dropped(&Dropout1d::new(0.25), &[1000, 3], 3, 4.0 / 3.0));
    check(dropped(&Dropout2d::new(0.25), &[20, 50, 2, 3], 6, 4.0 / 3.0));
    check(dropped(&Dropout2d::new(0.25), &[20, 50, 3], 3, 4.0 / 3.0));
    check(dropped(&Dropout3d::new(0.25), &[20, 50, 2, 1, 2], 4, 4.0 / 3.0));
    check(dropped(&Dropout3d::new(0.25), &[1000, 2, 1, 2], 4, 4.0 / 3.0));
    check(dropped(&DropPath::new(0.25), &[1000, 2, 3], 6, 4.0 / 3.0));
    check(dropped(&DropPath::new(0.25).scale_by_keep(false), &[1000, 2, 3], 6, 1.0));
    assert!(
        fault(&Dropout1d::new(0.5).forward(&ones(&[4])))
            .contains("is not [batch, channels, length]")
    );
    assert!(fault(&Dropout2d::new(0.5).forward(&ones(&[4, 4]))).contains("height, width"));
    assert!(fault(&DropPath::new(1.5).forward(&ones(&[4, 4]))).contains("between 0 and 1"));
}

#[test]
fn alpha_dropout_replaces_and_shifts_as_pytorchs() {
    let layer = AlphaDropout::new(0.3);
    layer.set_random_key(&random::key(3));
    let actual = values(&layer.forward(&(ones(&[1000]) * 2.0)));
    // The two values in the result of torch.nn.functional.alpha_dropout(torch.full((1000,), 2.0),
    // 0.3, True).
    let kept = actual.iter().cloned().fold(f64::MIN, f64::max);
    let dropped = actual.iter().cloned().fold(f64::MAX, f64::min);
    assert_close(&[kept, dropped], &[2.1759973, -1.0595483], 1e-6, 0.0, "alpha dropout");
    assert!(actual.iter().all(|&x| x == kept || x == dropped));
}

#[test]
fn in_evaluation_all_passes() {
    let layers: [&dyn Forward; 5] = [
        &Dropout1d::new(0.5),
        &Dropout2d::new(0.5),
        &Dropout3d::new(0.5),
        &AlphaDropout::new(0.5),
        &DropPath::new(0.5),
    ];
    let x = ones(&[2, 3, 4, 5]);
    for layer in layers.into_iter().skip(1) {
        assert!(fault(&layer.forward(&x)).contains("set_random_key"));
        layer.eval();
        assert!(layer.forward(&x).is(&x));
    }
}

#[test]
fn random_slopes_lie_between_their_bounds_while_training() {
    let layer = Rrelu::new().lower(0.1).upper(0.3);
    layer.set_random_key(&random::key(0));
    let slopes = values(&layer.forward(&(ones(&[1000]) * -1.0)));
    assert!(slopes.iter().all(|y| (-0.3..=-0.1).contains(y)));
    let mean = slopes.iter().sum::<f64>() / 1000.0;
    assert!((mean + 0.2).abs() < 0.01, "{mean}");
    assert_eq!(values(&layer.forward(&ones(&[3]))), [1.0; 3]);

    for wrong in [
        Rrelu::new().lower(0.3).upper(0.1),
        Rrelu::new().lower(f64::NAN).upper(0.1),
        Rrelu::new().lower(0.0).upper(f64::INFINITY),
    ] {
        let text = fault(&wrong.forward(&ones(&[1])));
        wrong.eval();
        assert_eq!(
            fault(&wrong.forward(&ones(&[1]))).split(" at ").next(),
            text.split(" at ").next()
        );
        assert!(text.starts_with("Rrelu: no slope lies between"), "{text}");
    }
    assert_eq!(
        values(&Rrelu::new().lower(0.5).upper(0.5).forward(&(ones(&[2]) * -1.0))),
        [-0.5; 2]
    );
}
