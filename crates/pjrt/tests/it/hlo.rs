//! Compiled programs, decoded: loops, collectives, matrix products, source lines.

use crate::common::*;
use fulmen_pjrt::hlo::{CollectiveKind, Module};
use fulmen_pjrt::{CompileOptions, NamedValue};

/// A product of 1024 × 256 by 256 × 256, twelve times over.
const LOOP: &str = r#"
func.func @main(%w: tensor<12x256x256xbf16>, %x: tensor<1024x256xbf16>) -> tensor<1024x256xbf16> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<12> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<1024x256xbf16>
    cond {
      %go = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %ws = stablehlo.dynamic_slice %w, %i, %zero, %zero, sizes = [1, 256, 256]
        : (tensor<12x256x256xbf16>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x256x256xbf16>
      %m = stablehlo.reshape %ws : (tensor<1x256x256xbf16>) -> tensor<256x256xbf16>
      %p = stablehlo.dot_general %y, %m, contracting_dims = [1] x [0]
        : (tensor<1024x256xbf16>, tensor<256x256xbf16>) -> tensor<1024x256xbf16> loc("model.rs":31:7)
      %t = stablehlo.tanh %p : tensor<1024x256xbf16>
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %t : tensor<i32>, tensor<1024x256xbf16>
    }
  return %r#1 : tensor<1024x256xbf16>
}"#;

fn check_loop(module: &Module, source: bool) {
    let loops = module.loops();
    assert_eq!(
        loops.iter().map(|l| (l.trip_count, l.times)).collect::<Vec<_>>(),
        [(Some(12), 1)],
        "{loops:?}"
    );
    let products = module.products();
    let [product] = &products[..] else { panic!("{products:?}") };
    let flops = 2.0 * 1024.0 * 256.0 * 256.0;
    assert_eq!((product.product.flops, product.times), (flops, 12), "{products:?}");
    assert_eq!(
        (product.product.rows, product.product.inner, product.product.columns),
        (1024, 256, 256)
    );
    if source {
        assert_eq!(
            product.source.as_ref().map(ToString::to_string).as_deref(),
            Some("model.rs:31")
        );
    }
    // At least the weights come from the main memory. The compiler chooses whether the state stays
    // on the chip, and whether each iteration copies it.
    let weights = 12.0 * 256.0 * 256.0 * 2.0;
    let state = 1024.0 * 256.0 * 2.0;
    let traffic = module.main_memory_traffic();
    assert!((weights + 2.0 * state..=2.0 * weights + 50.0 * state).contains(&traffic), "{traffic}");
    let further = module.cost_of_further_runs();
    assert!((11.0 * flops..11.1 * flops).contains(&further.flops), "{further:?}");
    // Each iteration reads and writes the state, and reads one slice of the weights.
    let once = 2.0 * (2.0 * 1024.0 * 256.0 + 256.0 * 256.0);
    assert!(
        (0.9 * 11.0 * once..4.0 * 11.0 * once).contains(&further.bytes),
        "{further:?}, {}",
        11.0 * once
    );
}

#[test]
fn a_cpu_program_has_its_loops_and_products() {
    let program = client(1).compile(LOOP, &CompileOptions::new()).unwrap();
    let module = program.hlo().unwrap();
    let loops = module.loops();
    assert_eq!(loops.iter().map(|l| l.trip_count).collect::<Vec<_>>(), [Some(12)], "{loops:?}");
    assert!(module.collectives().is_empty());
    assert_eq!(module.num_devices(), 1);
    let largest = module.largest_arrays(1);
    assert!(largest[0].bytes >= 12 * 256 * 256 * 2, "{largest:?}");
}

#[test]
fn a_tpu_program_has_its_loops_although_libtpu_records_no_trip_counts() {
    let Some(plugin) = libtpu() else { return };
    for name in ["v5e:1x1", "v3:1x1"] {
        let topology = plugin.topology(name).unwrap();
        let program = plugin.compile(&topology, LOOP, &CompileOptions::new()).unwrap();
        check_loop(&program.hlo().unwrap(), true);
        let flops = program.cost_analysis().unwrap().flops().unwrap();
        assert!(
            flops < 2.0 * 2.0 * 1024.0 * 256.0 * 256.0,
            "the compiler counts a loop's body once: {flops}"
        );
    }
}

/// The gradient of a sum of `x · w` with respect to `w`: a product over the split batch, and
/// therefore a sum over devices.
const GRADIENT: &str = r#"module @step {
  sdy.mesh @mesh = <["data"=8]>
  func.func @main(%x: tensor<1024x256xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>},
                  %g: tensor<1024x128xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
      -> (tensor<256x128xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
    %r = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0]
      : (tensor<1024x256xf32>, tensor<1024x128xf32>) -> tensor<256x128xf32> loc("product"("step.rs":7:3))
    return %r : tensor<256x128xf32>
  }
}"#;

fn check_gradient(module: &Module) {
    let collectives = module.collectives();
    let [one] = &collectives[..] else { panic!("{collectives:?}") };
    assert_eq!((one.kind, one.group_size, one.times), (CollectiveKind::AllReduce, 8, 1));
    assert_eq!((one.bytes, one.total_bytes()), (256 * 128 * 4, 256 * 128 * 4));
    assert_eq!(one.sent_bytes(), 2.0 * 7.0 / 8.0 * 131_072.0);
    assert_eq!(module.num_devices(), 8);
}

#[test]
fn the_bytes_of_an_all_reduce_are_those_of_the_gradient() {
    let program = client(8).compile(GRADIENT, &CompileOptions::new().partitions(8)).unwrap();
    check_gradient(&program.hlo().unwrap());
    let Some(plugin) = libtpu() else { return };
    for name in ["v5e:2x4", "v3:2x2", "v6e:2x4"] {
        let topology = plugin.topology(name).unwrap();
        let program =
            plugin.compile(&topology, GRADIENT, &CompileOptions::new().partitions(8)).unwrap();
        let module = program.hlo().unwrap();
        check_gradient(&module);
        let products = module.products();
        let [product] = &products[..] else { panic!("{products:?}") };
        let product = &product.product;
        // Each device has an eighth of the batch.
        assert_eq!(product.flops, 2.0 * 256.0 * 128.0 * 128.0, "{product:?}");
        assert_eq!((product.inner, product.passes()), (128, 1), "{product:?}");
        assert_eq!(
            (products[0].op_name.as_str(), products[0].source.as_ref().unwrap().line),
            ("product", 7)
        );
    }
}

#[test]
fn a_convolution_is_counted_as_the_compiler_counts_it() {
    let Some(plugin) = libtpu() else { return };
    // Forward, with padding and a stride: an input of 15 × 15 gives 8 × 8.
    let forward = "func.func @main(%x: tensor<8x15x15x64xbf16>, %w: tensor<3x3x64x96xbf16>) -> tensor<8x8x8x96xf32> {
      %y = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
        window = {stride = [2, 2], pad = [[1, 1], [1, 1]]}
        {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
        : (tensor<8x15x15x64xbf16>, tensor<3x3x64x96xbf16>) -> tensor<8x8x8x96xf32>
      return %y : tensor<8x8x8x96xf32>
    }";
    let topology = plugin.topology("v5e:1x1").unwrap();
    let program = plugin.compile(&topology, forward, &CompileOptions::new()).unwrap();
    let products = program.hlo().unwrap().products();
    let ours: f64 = products.iter().map(|p| p.product.flops).sum();
    // Along each axis 8 positions of 3, minus the ones that exceed the input at either end.
    assert_eq!(ours, 2.0 * 8.0 * (8.0 * 3.0 - 2.0_f64).powi(2) * 64.0 * 96.0, "{products:?}");
    let theirs = program.cost_analysis().unwrap().flops().unwrap();
    assert!((0.999..1.02).contains(&(theirs / ours)), "{theirs} / {ours}");
}

#[test]
fn the_two_cores_of_a_v4_chip_can_be_one_device() {
    let Some(plugin) = libtpu() else { return };
    let options = [("chip_config_name", NamedValue::from("megacore"))];
    assert_eq!(plugin.topology("v4:2x2x1").unwrap().devices().len(), 8);
    assert_eq!(plugin.topology_with("v4:2x2x1", &options).unwrap().devices().len(), 4);
    let error = plugin.topology_with("v3:2x2", &options).unwrap_err();
    assert!(error.is_not_found(), "{error:?}");
    let twice = [options[0].clone(), options[0].clone()];
    says(
        &plugin.topology_with("v4:2x2x1", &twice).unwrap_err(),
        &["chip_config_name is given twice"],
    );
}
