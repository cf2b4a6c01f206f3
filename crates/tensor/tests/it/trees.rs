//! Trees as arguments and results of bodies, and the names in messages about them.

use fulmen_tensor::{
    Accelerator, DType, Devices, Function, IntoTree, Runtime, Tensor, TensorType, Tree, call,
    checkpoint, cond, custom_gradient, fori_loop, grad, map, scan, switch, while_loop,
};

use crate::notes;

#[derive(Clone, Tree)]
struct State {
    position: Tensor,
    layers: Vec<(Tensor, Tensor)>,
    bias: Option<Tensor>,
    #[tree(skip)]
    label: &'static str,
}

#[derive(Tree)]
struct Pair<A, B>(A, B);

fn scalar(value: f32) -> Tensor {
    Tensor::scalar(value)
}

fn state(bias: bool) -> State {
    State {
        position: scalar(1.0),
        layers: vec![(scalar(2.0), scalar(3.0)), (scalar(4.0), scalar(5.0))],
        bias: bias.then(|| scalar(6.0)),
        label: "kept",
    }
}

/// All values of a tree of scalars.
fn values(tree: &impl Tree) -> Vec<f64> {
    tree.flatten().iter().map(|tensor| tensor.eval().unwrap().to_f64()[0]).collect()
}

/// The one message of all tensors of a tree.
fn message(tree: &impl Tree) -> String {
    let mut messages: Vec<String> = tree
        .flatten()
        .iter()
        .map(|tensor| tensor.fault().expect("a mistake").message().to_owned())
        .collect();
    messages.dedup();
    assert_eq!(messages.len(), 1, "{messages:?}");
    messages.remove(0)
}

#[test]
fn a_tree_has_names_and_gets_other_tensors() {
    let names = ["position", "layers.0.0", "layers.0.1", "layers.1.0", "layers.1.1"];
    assert_eq!(state(false).names(), names);
    assert_eq!(state(true).names()[5], "bias");
    assert_eq!(values(&state(true)), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let doubled = state(true).map_tensors(&mut |x| x * 2.0);
    assert_eq!(values(&doubled), [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
    assert_eq!(doubled.label, "kept");
    // Too few tensors leave the rest.
    assert_eq!(values(&state(false).unflatten([scalar(9.0)])), [9.0, 2.0, 3.0, 4.0, 5.0]);

    assert_eq!(scalar(1.0).names(), [""]);
    assert!(().names().is_empty() && None::<Tensor>.names().is_empty());
    let nested = Pair([scalar(1.0), scalar(2.0)], Pair(scalar(3.0), ()));
    assert_eq!(nested.names(), ["0.0", "0.1", "1.0"]);
}

#[test]
fn arguments_become_trees() {
    let x = scalar(1.0);
    let list = vec![&x, &x];
    let of_slice: Vec<Tensor> = list[..].into_tree();
    let of_list: Vec<Tensor> = (&list).into_tree();
    let of_borrowed_array: Vec<Tensor> = (&[&x, &x]).into_tree();
    let of_array: [Tensor; 2] = [&x, &x].into_tree();
    let nested: Vec<Vec<Tensor>> = (&vec![vec![x.clone()], vec![]]).into_tree();
    assert!(nested.names() == ["0.0"] && nested[0][0].is(&x));
    let (a, b): (Tensor, Option<Tensor>) = (&x, Some(&x)).into_tree();
    for tensor in
        [of_slice, of_list, of_borrowed_array, of_array.to_vec(), vec![a], b.into_iter().collect()]
            .concat()
    {
        assert!(tensor.is(&x));
    }
}

#[test]
fn every_function_with_a_body_takes_and_returns_trees() {
    let yes = Tensor::scalar(true);
    let double = |state: State| state.map_tensors(&mut |x| x * 2.0);
    let doubled = [2.0, 4.0, 6.0, 8.0, 10.0];
    let chosen = cond(&yes, state(false), double, |state| state);
    assert_eq!((values(&chosen), chosen.label), (doubled.to_vec(), "kept"));
    let chosen = cond(yes.not(), state(false), double, |state| state);
    assert_eq!(values(&chosen), [1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(values(&call("double", state(false), double)), doubled);
    assert_eq!(values(&checkpoint(double, state(false))), doubled);
    for (index, expected) in [(0, 1.0), (1, 2.0), (2, 4.0)] {
        let four_times = |state| double(double(state));
        let selected =
            switch(Tensor::scalar(index), state(false), |state| state, &[&double, &four_times]);
        let scaled = [1.0, 2.0, 3.0, 4.0, 5.0].map(|x| x * expected);
        assert_eq!((values(&selected), selected.label), (scaled.to_vec(), "kept"));
    }

    let last = while_loop(
        (state(false), Tensor::scalar(0)),
        |(_, step)| step.lt(3.0),
        |(state, step)| (double(state), step + 1.0),
    );
    assert_eq!(values(&last.0), [8.0, 16.0, 24.0, 32.0, 40.0]);
    let last = fori_loop(0, 2, state(true), |_, state| double(state));
    assert_eq!(values(&last), [4.0, 8.0, 12.0, 16.0, 20.0, 24.0]);
    let last = fori_loop(0, Tensor::scalar(2), state(false), |_, state| double(state));
    assert_eq!(values(&last), [4.0, 8.0, 12.0, 16.0, 20.0]);

    let xs = (Tensor::arange(DType::F32, 3), Tensor::arange(DType::F32, 3));
    let (last, ys) = scan(state(false), xs.clone(), |mut state, (a, b)| {
        state.position = state.position + &a;
        (state, Pair(a, vec![b]))
    });
    assert_eq!(values(&last), [4.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(ys.0.eval().unwrap().to_f64(), [0.0, 1.0, 2.0]);
    assert_eq!(ys.1[0].eval().unwrap().to_f64(), [0.0, 1.0, 2.0]);
    let sums = map(|(a, b)| [&a + &b, a - b], xs);
    assert_eq!(sums[0].eval().unwrap().to_f64(), [0.0, 2.0, 4.0]);
    assert_eq!(sums[1].eval().unwrap().to_f64(), [0.0; 3]);
}

#[test]
fn cotangents_have_the_tree_of_the_inputs() {
    let inputs = state(true);
    let outputs = custom_gradient(
        inputs.clone(),
        |state| Pair(state.position * 2.0, state.bias),
        |inputs, outputs, cotangents| {
            let mut cotangents_of_inputs = inputs.map_tensors(&mut Tensor::zeros_like);
            // Not the true derivative.
            cotangents_of_inputs.position = &cotangents.0 * 10.0 + &outputs.0;
            cotangents_of_inputs.bias = cotangents.1.clone();
            cotangents_of_inputs
        },
    );
    let loss = outputs.0 + outputs.1.unwrap() * 3.0;
    let gradients = grad(&loss, &inputs.flatten());
    assert_eq!(values(&gradients), [12.0, 0.0, 0.0, 0.0, 0.0, 3.0]);
}

#[test]
fn mistakes_name_the_tensors_of_a_tree() {
    let yes = Tensor::scalar(true);
    let wide = |mut state: State| {
        state.layers[1].0 = Tensor::zeros(DType::F32, [2]);
        state
    };
    let longer = |mut state: State| {
        let last = state.layers[1].clone();
        state.layers.push(last);
        state
    };
    let renamed = |mut state: State| {
        state.bias = Some(state.layers[1].0.clone());
        state.layers[1] = (scalar(0.0), scalar(0.0));
        state.layers.truncate(2);
        state
    };
    let branches = message(&cond(&yes, state(false), |state| state, wide));
    assert!(
        branches.starts_with("result layers.1.0 is f32[] in branch 0 and f32[2] in branch 1"),
        "{branches}"
    );
    let single = message(&cond(&yes, (), |()| scalar(0.0), |()| Tensor::zeros(DType::F32, [2])));
    assert!(single.starts_with("the result is f32[] in branch 0"), "{single}");
    let other = message(&cond(
        &yes,
        (),
        |()| (vec![scalar(0.0); 2], vec![scalar(0.0)]),
        |()| (vec![scalar(0.0)], vec![scalar(0.0); 2]),
    ));
    assert!(
        other.starts_with("branch 0 returns 0.0, 0.1, 1.0 and branch 1 returns 0.0, 1.0, 1.1"),
        "{other}"
    );

    let looped = |body: fn(State) -> State| {
        let xs = Tensor::zeros(DType::F32, [3]);
        let scanned = scan(state(false), &xs, |state, _| (body(state), ())).0;
        let repeated = while_loop(state(false), |_| Tensor::scalar(false), body);
        let messages = [message(&scanned), message(&repeated)];
        assert_eq!(messages[0], messages[1]);
        messages[0].clone()
    };
    let carried = looped(wide);
    assert!(
        carried.starts_with("carry layers.1.0 enters the body as f32[] and leaves it as f32[2]"),
        "{carried}"
    );
    let more = looped(longer);
    assert!(more.contains("enters the body as 5 tensors and leaves it as 7"), "{more}");
    let other = looped(renamed);
    assert!(other.contains("as 5 tensors and leaves it as 6"), "{other}");

    let unequal = (Tensor::zeros(DType::F32, [3]), Pair(Tensor::zeros(DType::F32, [4]), ()));
    let xs = message(&map(|(x, _)| x, unequal));
    assert!(
        xs.starts_with("x 1.0, f32[4], has 4 slices along its first axis, and x 0 has 3"),
        "{xs}"
    );
}

fn runtime() -> Runtime {
    Runtime::open(Accelerator::Cpu, &Devices::from(1)).unwrap()
}

/// The names of a function's parameters, as messages show them.
fn parameters(function: &Function) -> Vec<String> {
    let recorded = function.recorded().unwrap();
    let mut names = vec![String::new(); function.parameters().len()];
    for value in recorded {
        if let (Some(i), Some(name)) = (value.parameter, value.name) {
            names[i] = name;
        }
    }
    names
}

#[test]
fn a_function_is_traced_with_a_tree_of_types() {
    let ty = TensorType::new(DType::F32, [2]);
    let single = Function::trace("f", &ty, |x| &x * &x);
    assert_eq!(parameters(&single), ["input"]);
    let pair = Function::trace("f", (ty.clone(), &ty), |(a, b)| (a.sum_all(), vec![a * b]));
    assert_eq!(parameters(&pair), ["input 0", "input 1"]);
    assert_eq!(pair.results().len(), 2);
    let types = vec![ty.clone(), ty.clone()];
    let list = |x: Vec<Tensor>| (x[0].sum_all(), vec![&x[0] * &x[1]]);
    let texts = [
        pair,
        Function::trace("f", &types, list),
        Function::trace("f", &types[..], list),
        Function::trace("f", &[ty.clone(), ty.clone()], list),
        Function::trace("f", types, list),
        Function::trace("f", [&ty, &ty], |[a, b]| (a.sum_all(), [a * b])),
    ]
    .map(|function| function.stablehlo().unwrap());
    // The program has the lines, which differ, and no names of inputs.
    let statements = |text: &String| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with("#loc"));
        lines.map(|line| line.split(" loc(").next().unwrap_or_default().to_owned()).collect()
    };
    let first = statements(&texts[0]);
    assert!(first.len() > 4 && texts.iter().all(|text| statements(text) == first), "{texts:#?}");

    // A tensor stands for its type, and a struct keeps its names.
    let of_state = Function::trace("f", (&ty, state(true)), |(x, state)| {
        assert_eq!(state.label, "kept");
        state.layers[1].1.clone() * x * state.position * state.bias.unwrap()
    });
    let names = parameters(&of_state);
    assert_eq!(
        (&names[..2], names.len()),
        (&["input 0", "input 1.position"].map(String::from)[..], 7)
    );
    let wrong = scalar(1.0).matmul(scalar(1.0));
    let error = Function::trace("f", (&ty, wrong), |(x, _)| x).stablehlo().unwrap_err();
    assert_eq!(error.location().unwrap().line(), line!() - 2);
}

#[test]
fn a_jitted_function_takes_and_returns_a_struct() {
    let mut double = runtime().jit("double", |(state, by): (State, Tensor)| {
        Pair(state.map_tensors(&mut |x| x * &by), state.bias)
    });
    for by in [2.0f32, 3.0] {
        let Pair(doubled, bias) = double.call((state(true), Tensor::scalar(by))).unwrap();
        let expected = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0].map(|x| x * f64::from(by));
        assert_eq!((values(&doubled), doubled.label), (expected.to_vec(), "kept"));
        assert_eq!(values(&bias), [6.0]);
        assert!(doubled.flatten().iter().all(|tensor| tensor.array().is_some()));
        // Results are inputs as they are.
        let Pair(again, _) = double.call((doubled, Tensor::scalar(by))).unwrap();
        assert_eq!(values(&again)[5], expected[5] * f64::from(by));
    }
    assert_eq!(double.programs(), 1);
    let nothing = runtime().jit("nothing", |(): ()| scalar(7.0)).call(()).unwrap();
    assert_eq!(values(&nothing), [7.0]);
}

#[test]
fn mistakes_and_notes_name_the_inputs_of_a_jitted_function() {
    notes::collect();
    let runtime = runtime();
    let mut moved = runtime.jit("moved by", |(state, by): (State, Tensor)| state.position + by);
    moved.call((state(false), scalar(1.0))).unwrap();
    let mut wide = state(false);
    wide.position = Tensor::zeros(DType::F32, [3]);
    moved.call((wide, scalar(1.0))).unwrap();
    let notes = notes::about("`moved by`");
    assert!(notes[0].contains("input 0.position was f32[], then f32[3]"), "{notes:?}");
    let error = moved.call((state(true), scalar(1.0))).unwrap_err().to_string();
    let expected = "`moved by` was first called with 6 tensors, and is now called with 7; pass the same tensors";
    assert!(error.starts_with(expected), "{error}");
    assert_eq!(moved.programs(), 2);

    let mut chosen = runtime.jit("chosen", |(a, b): (Option<Tensor>, Option<Tensor>)| {
        a.or(b).unwrap_or_else(|| scalar(0.0))
    });
    let value = |x: f32| Some(scalar(x));
    assert_eq!(values(&chosen.call((value(1.0), None::<Tensor>)).unwrap()), [1.0]);
    let error = chosen.call((None::<Tensor>, value(2.0))).unwrap_err().to_string();
    let expected =
        "`chosen` was first called with the inputs 0, and is now called with the inputs 1;";
    assert!(error.starts_with(expected), "{error}");

    let mut early = runtime.jit("early", |pair: Pair<Tensor, State>| {
        let error = pair.1.layers[0].1.eval().unwrap_err().to_string();
        assert!(
            error.contains("it depends on `input 1.layers.0.1`, an input of the function"),
            "{error}"
        );
        pair.0
    });
    assert_eq!(values(&early.call(Pair(scalar(4.0), state(false))).unwrap()), [4.0]);
}
