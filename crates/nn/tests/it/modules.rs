//! The derive macro, and operations on a whole model: names, sharing, modes, initialization.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::common::{fault, values};
use fulmen_nn::{
    BatchNorm2d, Buffer, Conv2d, Dropout, Init, Linear, Module, Parameter, RandomStream, Relu,
    Sequential, TrainingMode, Visit, Visitor,
};
use fulmen_tensor::{Argument, DType, Function, Runtime, Tensor, TensorType, random};

fn names(module: &impl Module) -> Vec<String> {
    module.parameters().into_iter().map(|(name, _)| name).collect()
}

fn scalar() -> Parameter {
    Parameter::new([], Init::ones())
}

#[test]
fn nested_structs_lists_and_options_have_pytorchs_names() {
    #[derive(Module)]
    struct Block {
        conv: Conv2d,
        bn: Option<BatchNorm2d>,
        act: Relu,
    }
    #[derive(Module)]
    struct Net {
        layers: Vec<Block>,
        pair: (Linear, Parameter),
        two: [Parameter; 2],
        boxed: Box<Linear>,
        shared: Arc<Linear>,
        by_name: BTreeMap<String, Parameter>,
        dropout: Dropout,
        name: String,
        hidden: usize,
        rate: f64,
        flag: Option<bool>,
    }
    let block = |bn| Block { conv: Conv2d::new(1, 1, 1).bias(false), bn, act: Relu };
    let net = Net {
        layers: vec![block(None), block(Some(BatchNorm2d::new(1)))],
        pair: (Linear::new(1, 1), scalar()),
        two: [scalar(), scalar()],
        boxed: Box::new(Linear::new(1, 1).bias(false)),
        shared: Arc::new(Linear::new(1, 1).bias(false)),
        by_name: BTreeMap::from([("b".to_owned(), scalar()), ("a".to_owned(), scalar())]),
        dropout: Dropout::new(0.5),
        name: "net".into(),
        hidden: 1,
        rate: 0.1,
        flag: Some(true),
    };
    let _ = (&net.name, net.hidden, net.rate, net.flag, &net.layers[0].act);
    assert_eq!(
        names(&net),
        [
            "layers.0.conv.weight",
            "layers.1.conv.weight",
            "layers.1.bn.weight",
            "layers.1.bn.bias",
            "pair.0.weight",
            "pair.0.bias",
            "pair.1",
            "two.0",
            "two.1",
            "boxed.weight",
            "shared.weight",
            "by_name.a",
            "by_name.b",
        ]
    );
    let buffers: Vec<_> = net.buffers().into_iter().map(|(name, _)| name).collect();
    assert_eq!(
        buffers,
        ["layers.1.bn.running_mean", "layers.1.bn.running_var", "layers.1.bn.num_batches_tracked"]
    );
    assert_eq!(net.state().len(), 16);
    // The same through a `dyn` reference.
    let dynamic: &dyn Module = &net;
    assert_eq!(dynamic.num_parameters(), 13);
}

#[test]
fn tuple_structs_count_and_attributes_rename_flatten_and_skip() {
    struct NotAModule;
    #[derive(Module)]
    struct Tuple(Linear, usize, Parameter);
    #[derive(Module)]
    struct Unit;
    #[derive(Module)]
    struct Net {
        tuple: Tuple,
        unit: Unit,
        #[module(rename = "fc")]
        head: Parameter,
        #[module(flatten)]
        body: Linear,
        #[module(skip)]
        skipped: NotAModule,
        r#type: Parameter,
    }
    let net = Net {
        tuple: Tuple(Linear::new(1, 1), 3, scalar()),
        unit: Unit,
        head: scalar(),
        body: Linear::new(1, 1),
        skipped: NotAModule,
        r#type: scalar(),
    };
    let _ = (&net.unit, &net.skipped, net.tuple.1);
    assert_eq!(
        names(&net),
        ["tuple.0.weight", "tuple.0.bias", "tuple.2", "fc", "weight", "bias", "type"]
    );
}

#[test]
fn enums_visit_the_variant_that_they_are() {
    #[derive(Module)]
    enum Norm {
        Batch(BatchNorm2d),
        Scale { by: Parameter, eps: f64 },
        Two(Parameter, Parameter),
        None,
    }
    let named = |norm: Norm| names(&BTreeMap::from([("n".to_owned(), norm)]));
    assert_eq!(named(Norm::Batch(BatchNorm2d::new(2))), ["n.weight", "n.bias"]);
    assert_eq!(named(Norm::Scale { by: scalar(), eps: 0.1 }), ["n.by"]);
    assert_eq!(named(Norm::Two(scalar(), scalar())), ["n.0", "n.1"]);
    assert!(named(Norm::None).is_empty());
}

#[test]
fn generic_structs_ask_only_what_they_show_to_be_a_module() {
    struct Tag;
    #[derive(Module)]
    struct Residual<'a, M, T, const N: usize>
    where
        T: 'a,
    {
        inner: M,
        more: [M; N],
        #[module(skip)]
        tag: Option<&'a T>,
        mark: PhantomData<M>,
    }
    let tag = Tag;
    let net = Residual::<_, Tag, 2> {
        inner: scalar(),
        more: [scalar(), scalar()],
        tag: Some(&tag),
        mark: PhantomData,
    };
    let _ = (net.tag, net.mark);
    assert_eq!(names(&net), ["inner", "more.0", "more.1"]);
}

#[test]
fn tied_parameters_come_once_under_the_first_name() {
    #[derive(Module)]
    struct Tied {
        embed: Linear,
        head: Linear,
    }
    let embed = Linear::new(4, 3).bias(false);
    let mut head = Linear::new(4, 3);
    head.weight = embed.weight.clone();
    let model = Tied { embed, head };
    assert_eq!(names(&model), ["embed.weight", "head.bias"]);
    assert_eq!(model.num_parameters(), 12 + 3);
    model.initialize(1);
    assert!(model.head.weight.get().is(&model.embed.weight.get()));

    struct Count(usize);
    impl Visitor for Count {
        fn parameter(&mut self, _: &str, _: &Parameter) {
            self.0 += 1;
        }
    }
    let mut count = Count(0);
    model.visit(&mut Visit::new(&mut count));
    assert_eq!(count.0, 3, "a visitor sees each name");
}

#[test]
fn train_and_eval_reach_every_switch() {
    let a = TrainingMode::new();
    let b = TrainingMode::new();
    let model = (vec![a.clone()], Some(b.clone()));
    model.eval();
    assert!(!a.is_training() && !b.is_training());
    model.train();
    assert!(a.is_training() && b.is_training());
}

#[test]
fn a_parameter_without_a_value_says_what_to_do_and_where_it_was_needed() {
    let layer = Linear::new(2, 2);
    let y = layer.forward(&Tensor::zeros(DType::F32, [1, 2]));
    let text = fault(&y);
    assert!(
        text.contains("f32[2, 2] has no value yet") && text.contains("initialize(seed)"),
        "{text}"
    );
    assert!(text.contains("modules.rs"), "{text}");
}

#[test]
fn initialization_depends_on_the_seed_and_the_name_only() {
    let a = Linear::new(8, 8);
    let b = (0usize, 0usize, Linear::new(8, 8));
    let c =
        BTreeMap::from([("weight".to_owned(), Parameter::new([8, 8], Init::uniform(0.0, 1.0)))]);
    [&a as &dyn Module, &b, &c].iter().for_each(|m| m.initialize(7));
    let first = values(&a.weight.get());
    assert_ne!(first, values(&b.2.weight.get()), "another name");
    let bound = 1.0 / 8f64.sqrt();
    assert!(first.iter().all(|v| v.abs() <= bound) && first.iter().any(|v| v.abs() > 0.8 * bound));
    // The same random bits, scaled to another interval.
    let unit = values(&c["weight"].get());
    for (v, u) in first.iter().zip(unit) {
        assert!((v - (2.0 * u - 1.0) * bound).abs() < 1e-6);
    }

    let other = Linear::new(8, 8);
    other.initialize(7);
    assert_eq!(first, values(&other.weight.get()));
    other.reinitialize(8);
    assert_ne!(first, values(&other.weight.get()));
}

#[test]
fn initialize_leaves_what_has_a_value_and_reinitialize_does_not() {
    let ones = Parameter::from_tensor(Tensor::ones(DType::F32, [2]));
    let late = Parameter::new([2], Init::zeros());
    late.set(Tensor::full(DType::F32, [2], 5.0));
    let buffer = Buffer::new(Tensor::zeros(DType::F32, [2]));
    buffer.set(Tensor::full(DType::F32, [2], 3.0));
    let model = (ones.clone(), late.clone(), buffer.clone());
    model.initialize(0);
    assert_eq!(values(&late.get()), [5.0, 5.0]);
    assert_eq!(values(&buffer.get()), [3.0, 3.0]);
    model.reinitialize(0);
    assert_eq!(values(&ones.get()), [1.0, 1.0]);
    assert_eq!(values(&late.get()), [0.0, 0.0]);
    assert_eq!(values(&buffer.get()), [0.0, 0.0]);
}

#[test]
fn a_value_of_another_type_is_refused() {
    let parameter = Parameter::new([2], Init::zeros());
    parameter.set(Tensor::zeros(DType::F32, [3]));
    let text = fault(&parameter.get());
    assert!(
        text.contains("f32[2]") && text.contains("f32[3]") && text.contains("modules.rs"),
        "{text}"
    );
}

#[test]
fn random_streams_start_anew_with_a_key_of_their_own_name() {
    let model = vec![RandomStream::new(), RandomStream::new()];
    let key = random::key(3);
    model.set_random_key(&key);
    let draw = |i: usize| values(&model[i].next_key());
    let first = draw(0);
    let second = draw(0);
    let other = draw(1);
    assert_ne!(first, second);
    assert_ne!(first, other);
    model.set_random_key(&key);
    assert_eq!((draw(0), draw(1)), (first, other));
    let by_name = random::fold_in_name(&key, "1");
    assert_eq!(values(&random::fold_in(&by_name, 1)), draw(1));
}

#[test]
fn the_keys_of_all_random_streams_are_derived_together() {
    let layers: Vec<Dropout> = (0..9).map(|_| Dropout::new(0.5)).collect();
    let types = [TensorType::new(DType::U32, [2]), TensorType::new(DType::F32, [4, 8])];
    let function = Function::trace("dropouts", types, |[key, x]| {
        layers.set_random_key(&key);
        let y = layers.iter().fold(x, |x, layer| layer.forward(&x));
        layers[3].forward(&y)
    });
    let text = function.stablehlo().unwrap();
    let calls = |of: &str| text.matches(&format!("call @threefry2x32.{of}(")).count();
    // Two for the names, then one each for the first and the second draw of all layers.
    assert_eq!(calls("9") + calls("9.keys"), 4, "{text}");
    assert_eq!(calls("4x8"), 10);
    assert_eq!(text.matches("call @threefry2x32.").count(), 14);
}

/// XLA's CPU compiler once did not finish such a program within minutes.
#[test]
fn keys_that_are_computed_on_the_device_equal_those_of_the_host() {
    let streams: Vec<RandomStream> = (0..3).map(|_| RandomStream::new()).collect();
    let draws = |key: &Tensor| -> Vec<Tensor> {
        streams.set_random_key(key);
        let draw = |stream: &RandomStream| {
            let indices = random::randint(stream.next_key(), DType::I32, [5], 0, 100);
            [random::normal(stream.next_key(), DType::F32, [4, 3]), indices.to_dtype(DType::F32)]
        };
        streams.iter().flat_map(draw).collect()
    };
    let key = random::key(1);
    let function = Function::trace("draws", key.ty().clone(), |x| {
        draws(&random::fold_in_tensor(&x, Tensor::scalar(7u32)))
    });
    let runtime = Runtime::global().unwrap();
    let input = runtime.to_device(&key.eval().unwrap()).unwrap();
    let on_device =
        runtime.compile(&function).unwrap().call(vec![Argument::Borrow(&input)]).unwrap();
    let arrays: Vec<_> = on_device.arrays.iter().collect();
    let on_device = runtime.read(&arrays).unwrap().wait().unwrap();
    for (on_device, on_host) in on_device.iter().zip(draws(&random::fold_in(&key, 7))) {
        assert_eq!(
            on_device.to_vec::<f32>().unwrap(),
            on_host.eval().unwrap().to_vec::<f32>().unwrap()
        );
    }
}

#[test]
fn frozen_parameters_say_so_under_all_their_clones() {
    let layer = Linear::new(1, 1);
    layer.clone().set_requires_grad(false);
    assert!(layer.parameters().iter().all(|(_, p)| !p.requires_grad()));
    assert_eq!(format!("{:?}", layer.weight), "Parameter(f32[1, 1], no value yet, frozen)");
}

/// A user's layer that adds tensors whose shapes do not fit.
#[derive(Module)]
struct Wrong {}

const WRONG: u32 = line!() + 4;

impl fulmen_nn::Forward for Wrong {
    fn forward(&self, x: &Tensor) -> Tensor {
        x + Tensor::zeros(DType::F32, [7])
    }
}

#[test]
fn a_layer_of_a_row_stands_at_the_line_that_added_it() {
    let x = Tensor::zeros(DType::F32, [5, 2]);
    let model = Sequential::new().add(Linear::new(2, 3));
    let line = line!() + 1;
    let model = model.add(Linear::new(4, 3));
    model.initialize(0);
    let fault = model.forward(&x).fault().unwrap().clone();
    assert_eq!((fault.location().file(), fault.location().line()), (file!(), line), "{fault}");
    let line = line!() + 1;
    let good = Sequential::new().add(Linear::new(2, 3));
    good.initialize(0);
    assert_eq!(good.forward(&x).location().line(), line);
    // A layer that records in a closure.
    let line = line!() + 3;
    let conv = Conv2d::new(2, 3, 1);
    conv.initialize(0);
    let y = conv.forward(&Tensor::zeros(DType::F32, [2, 4, 4]));
    assert_eq!((y.location().file(), y.location().line()), (file!(), line));
    // Faults in a user's layer keep their own line.
    let fault = Sequential::new().add(Wrong {}).forward(&x).fault().unwrap().clone();
    assert_eq!((fault.location().file(), fault.location().line()), (file!(), WRONG), "{fault}");
}

#[test]
fn sequential_names_its_layers_by_number() {
    let model = Sequential::new()
        .add(Linear::new(2, 3))
        .add(Relu)
        .add(Sequential::new().add(Linear::new(3, 1)));
    assert_eq!(names(&model), ["0.weight", "0.bias", "2.0.weight", "2.0.bias"]);
    model.initialize(0);
    assert_eq!(model.forward(&Tensor::zeros(DType::F32, [5, 2])).ty().to_string(), "f32[5, 1]");
}
