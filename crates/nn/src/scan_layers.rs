//! [`scan_layers`]: equal modules in sequence as one loop, whose body is in the program only once.
//!
//! The modules do not change. While the body is recorded, the first module holds one slice of the
//! stacked values of all of them; afterwards each module holds its own values again.

use std::cell::RefCell;

use fulmen_tensor::{Sharding, Tensor, Tree, Variable, scan};

use crate::library::NN;
use crate::random_stream::{State, StreamKey};
use crate::{Buffer, Module, Parameter, RandomStream, TrainingMode, Visit, Visitor};

/// Runs `x` through the layers as one [`scan`]: `f` is called once, with the first layer, and
/// records the body of a loop over all of them. Many equal layers compile in the time of one.
/// Values, gradients and random numbers are the same as with
/// `layers.fold(x, |x, layer| f(layer, x))`.
///
/// The layers keep their parameters and their names. The program stacks the values before the loop,
/// which needs memory for a second copy of the layers' parameters. In a training step of the
/// Trainer, no second copy is needed with optimizers that update each element independently: there,
/// the parameters of all layers are already one array. Parameters that a strategy such as FSDP
/// splits between steps stay split: the loop gathers one layer at a time, and does so again in the
/// backward pass.
///
/// The layers must be equal except for their values: the same names, dtypes and shapes, all in
/// training or all in evaluation mode. Settings that are not parameters, such as a stride, must be
/// equal too, but they are not compared. If two kinds of layers alternate, scan pairs:
/// `scan_layers(layers.chunks(2), …)`.
///
/// Poisoned if the layers differ, or if `f` changes shape or dtype.
///
/// ```
/// use fulmen_nn::{Linear, Module, scan_layers};
/// use fulmen_tensor::{DType, Tensor};
///
/// let layers: Vec<Linear> = (0..24).map(|_| Linear::new(8, 8)).collect();
/// layers.initialize(0);
/// let x = Tensor::ones(DType::F32, [2, 8]);
/// let y = scan_layers(&layers, &x, |layer, x| layer.forward(x).tanh());
/// let one_by_one = layers.iter().fold(x, |x, layer| layer.forward(x).tanh());
/// assert_eq!(y.eval()?.to_vec::<f32>()?, one_by_one.eval()?.to_vec::<f32>()?);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn scan_layers<'m, M: Module + ?Sized + 'm>(
    layers: impl IntoIterator<Item = &'m M>,
    x: &Tensor,
    f: impl FnOnce(&M, &Tensor) -> Tensor,
) -> Tensor {
    scan_layers_with_outputs(layers, x, |layer, x| (f(layer, x), ())).0
}

/// [`scan_layers`], in which each layer also has other outputs, such as a part of the loss: any
/// [`Tree`](trait@Tree). Returns the last `x`, and the same tree with each output of all layers,
/// stacked along a new first axis. Without layers and after a mistake, there is no tree.
///
/// ```
/// use fulmen_nn::{Linear, Module, scan_layers_with_outputs};
/// use fulmen_tensor::{DType, Tensor};
///
/// let layers: Vec<Linear> = (0..24).map(|_| Linear::new(8, 8)).collect();
/// layers.initialize(0);
/// let x = Tensor::ones(DType::F32, [2, 8]);
/// let (y, means) = scan_layers_with_outputs(&layers, &x, |layer, x| {
///     let y = layer.forward(x).tanh();
///     (y.clone(), y.mean_all())
/// });
/// let means = means.expect("there are layers");
/// assert_eq!((y.ty().to_string(), means.ty().to_string()), ("f32[2, 8]".into(), "f32[24]".into()));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn scan_layers_with_outputs<'m, M: Module + ?Sized + 'm, Y: Tree>(
    layers: impl IntoIterator<Item = &'m M>,
    x: &Tensor,
    f: impl FnOnce(&M, &Tensor) -> (Tensor, Y),
) -> (Tensor, Option<Y>) {
    let mut outputs = None;
    let y = NN.record("scan_layers", || {
        let layers: Vec<&M> = layers.into_iter().collect();
        let contents: Vec<LayerContents> =
            layers.iter().map(|&layer| LayerContents::read(layer)).collect();
        let (Some(&layer), Some(first)) = (layers.first(), contents.first()) else {
            return Ok(x.clone());
        };
        for (number, other) in contents.iter().enumerate().skip(1) {
            first.compare(number, other)?;
        }
        SCANNED.with_borrow_mut(|scanned| {
            let cells =
                |i: usize| contents.iter().map(|content| content.cells[i].clone()).collect();
            scanned
                .iter_mut()
                .for_each(|scanned| scanned.extend((0..first.cells.len()).map(cells)));
        });
        let (mut xs, parts): (Vec<Tensor>, Vec<Option<[Sharding; 2]>>) = (0..first.cells.len())
            .map(|i| stack_parts(contents.iter().map(|content| &content.values[i])))
            .unzip();
        let drawn: Vec<u32> = (0..first.streams.len())
            .map(|i| {
                contents.iter().map(|content| content.states[i].drawn).max().unwrap_or_default()
            })
            .collect();
        xs.extend(stack_keys(&contents));
        let mut changed = Vec::new();
        let mut drawn_after = Vec::new();
        let restore = Restore(first);
        let (last, ys) = scan(x, &xs, |x, slices| {
            let (values, keys) = slices.split_at(first.cells.len());
            let gather = |(value, parts): (&Tensor, &Option<[Sharding; 2]>)| match parts {
                Some([parts, gathered]) => value.all_gather_to(parts, gathered),
                None => value.clone(),
            };
            let values: Vec<Tensor> = values.iter().zip(&parts).map(gather).collect();
            first.cells.iter().zip(&values).for_each(|(cell, value)| cell.set(value.clone()));
            for (i, (stream, &drawn)) in first.streams.iter().zip(&drawn).enumerate() {
                stream.set_state(State { key: keys.get(i).cloned().map(StreamKey::Own), drawn });
            }
            let (y, others) = f(layer, &x);
            drawn_after = first.streams.iter().map(|stream| stream.state().drawn).collect();
            changed = (0..values.len()).filter(|&i| !first.cells[i].get().is(&values[i])).collect();
            let buffers: Vec<Tensor> = changed.iter().map(|&i| first.cells[i].get()).collect();
            (y, (buffers, others))
        });
        let (buffers, others) = ys;
        drop(restore);
        for (number, content) in contents.iter().enumerate() {
            for (&i, y) in changed.iter().zip(&buffers) {
                if number > 0 && content.cells[i].is(&first.cells[i]) {
                    return Err(
                        format!("layers 0 and {number} share a buffer that they change").into()
                    );
                }
                content.cells[i].set(y.index(0, number as isize));
            }
            for ((stream, state), &drawn) in
                content.streams.iter().zip(&content.states).zip(&drawn_after)
            {
                stream.set_state(State { drawn, ..state.clone() });
            }
        }
        outputs = Some(others);
        Ok(last)
    });
    (y, outputs)
}

/// The keys of each random stream in all layers, stacked. If any layer lacks a key for a stream, no
/// stream has a key in the loop, and drawing is an error.
fn stack_keys(contents: &[LayerContents]) -> Vec<Tensor> {
    let mut keys: Vec<Vec<Tensor>> = Vec::new();
    for content in contents {
        let keys_of_layer: Option<Vec<Tensor>> =
            content.states.iter().map(|state| Some(state.key.as_ref()?.tensor())).collect();
        let Some(keys_of_layer) = keys_of_layer else { return Vec::new() };
        keys.push(keys_of_layer);
    }
    let streams = keys.first().map_or(0, Vec::len);
    (0..streams).map(|i| stack(keys.iter().map(|keys_of_layer| &keys_of_layer[i]))).collect()
}

thread_local! {
    /// The cells that were stacked, if [`scanned`] is running.
    static SCANNED: RefCell<Option<Vec<Vec<Variable>>>> = const { RefCell::new(None) };
}

/// Runs `record`, and returns the variables that [`scan_layers`] stacked in it: for each loop and
/// each name in a layer, the variables of all layers in order. The Trainer keeps such parameters as
/// one array.
///
/// ```
/// use fulmen_nn::{Linear, Module, scan_layers, scanned};
/// use fulmen_tensor::{DType, Tensor};
///
/// let layers = [Linear::new(8, 8), Linear::new(8, 8)];
/// layers.initialize(0);
/// let x = Tensor::ones(DType::F32, [2, 8]);
/// let (_, found) = scanned(|| scan_layers(&layers, &x, |layer, x| layer.forward(x)));
/// assert_eq!(found.len(), 2);
/// assert!(found[0][1].is(&layers[1].weight.variable()));
/// ```
#[doc(hidden)]
pub fn scanned<T>(record: impl FnOnce() -> T) -> (T, Vec<Vec<Variable>>) {
    /// Restores the list of an outer call, even if the user's code panics.
    struct Restore(Option<Vec<Vec<Variable>>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            SCANNED.set(self.0.take());
        }
    }
    let restore = Restore(SCANNED.replace(Some(Vec::new())));
    let value = record();
    let variables = SCANNED.take().unwrap_or_default();
    drop(restore);
    (value, variables)
}

/// Stacks the tensors along a new first axis. If they are all the rows of one tensor, in order,
/// returns that tensor.
fn stack<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Tensor {
    let tensors: Vec<&Tensor> = tensors.collect();
    let whole = tensors.first().and_then(|first| first.row_of()).map(|(whole, _)| whole);
    let is_row = |(number, tensor): (usize, &&Tensor), whole: &Tensor| {
        tensor.row_of().is_some_and(|(stacked, row)| stacked.is(whole) && row == number)
    };
    match whole {
        Some(whole)
            if whole.size(0) == tensors.len()
                && tensors.iter().enumerate().all(|row| is_row(row, whole)) =>
        {
            whole.clone()
        }
        _ => Tensor::stack(&tensors, 0),
    }
}

/// The stacked values of all layers. If each value is gathered from parts with the same sharding,
/// stacks the parts instead, and also returns the shardings of one layer before and after.
fn stack_parts<'a>(
    values: impl Iterator<Item = &'a Tensor> + Clone,
) -> (Tensor, Option<[Sharding; 2]>) {
    let gathered: Option<Vec<_>> = values.clone().map(Tensor::gathered_from).collect();
    match gathered.as_deref() {
        Some([(_, shardings), ..])
            if gathered.iter().flatten().all(|(_, other)| other == shardings) =>
        {
            let parts = stack(gathered.iter().flatten().map(|(parts, _)| *parts));
            let sharding = shardings[0].stacked();
            (parts.with_sharding(&sharding), Some(shardings.map(Sharding::clone)))
        }
        _ => (stack(values), None),
    }
}

/// The contents of a layer.
#[derive(Default)]
struct LayerContents {
    /// Descriptions of all contents, to compare layers.
    entries: Vec<String>,
    /// The cells of parameters and buffers, each once, and their values.
    cells: Vec<Variable>,
    values: Vec<Tensor>,
    streams: Vec<RandomStream>,
    states: Vec<State>,
}

impl LayerContents {
    fn read<M: Module + ?Sized>(layer: &M) -> LayerContents {
        let mut contents = LayerContents::default();
        layer.visit(&mut Visit::new(&mut contents));
        contents
    }

    fn cell(&mut self, name: &str, cell: Variable, value: Tensor) {
        let index = self.cells.iter().position(|other| other.is(&cell));
        let tied = index.map_or(String::new(), |i| format!(", tied to number {i}"));
        self.entries.push(format!("`{name}` {}{tied}", cell.ty()));
        if index.is_none() {
            self.cells.push(cell);
            self.values.push(value);
        }
    }

    /// Rejects a layer that is not equal to this one, the first.
    fn compare(&self, number: usize, other: &LayerContents) -> Result<(), String> {
        let entries = &self.entries;
        let other_entries = &other.entries;
        let count = entries.len().max(other_entries.len());
        if let Some(i) = (0..count).find(|&i| entries.get(i) != other_entries.get(i)) {
            let entry = |entries: &[String]| {
                entries.get(i).map_or("nothing more".to_owned(), String::clone)
            };
            return Err(format!(
                "layer {number} has {} where layer 0 has {}; a scan needs equal layers",
                entry(other_entries),
                entry(entries)
            ));
        }
        if self.streams.iter().zip(&other.streams).any(|(a, b)| a.is(b)) {
            Err(format!("layers 0 and {number} share a random stream; make one for each"))
        } else {
            Ok(())
        }
    }
}

impl Visitor for LayerContents {
    fn parameter(&mut self, name: &str, parameter: &Parameter) {
        self.cell(name, parameter.variable(), parameter.stored());
        for (part, value) in parameter.parts() {
            self.cell(&format!("{name}.{part}"), value.variable(), value.stored());
        }
    }
    fn buffer(&mut self, name: &str, buffer: &Buffer) {
        self.cell(name, buffer.variable().clone(), buffer.get());
    }
    fn mode(&mut self, name: &str, mode: &TrainingMode) {
        let mode = if mode.is_training() { "training" } else { "evaluation" };
        self.entries.push(format!("`{name}` in {mode} mode"));
    }
    fn random_stream(&mut self, name: &str, stream: &RandomStream) {
        self.entries.push(format!("the random stream `{name}`"));
        if !self.streams.iter().any(|other| other.is(stream)) {
            self.streams.push(stream.clone());
            self.states.push(stream.state().clone());
        }
    }
}

/// Gives a layer its own values again when dropped, even if the user's code panics.
struct Restore<'a>(&'a LayerContents);

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        let LayerContents { cells, values, streams, states, .. } = self.0;
        cells.iter().zip(values).for_each(|(cell, value)| cell.set(value.clone()));
        streams.iter().zip(states).for_each(|(stream, state)| stream.set_state(state.clone()));
    }
}

#[cfg(test)]
mod tests {
    use fulmen_tensor::{DType, Runtime, random};

    use super::*;
    use crate::{BatchNorm1d, Dropout, Linear};

    #[test]
    fn running_statistics_and_random_numbers_are_those_of_the_layers() {
        let layers: Vec<_> =
            (0..3).map(|_| (Linear::new(4, 4), BatchNorm1d::new(4), Dropout::new(0.5))).collect();
        layers.initialize(0);
        let x = random::normal(&random::key(1), DType::F32, [6, 4]);
        let forward = |layer: &(Linear, BatchNorm1d, Dropout), x: &Tensor| {
            layer.2.forward(layer.2.forward(layer.1.forward(layer.0.forward(x))))
        };
        let statistics =
            || layers.buffers().into_iter().map(|(_, buffer)| buffer.get()).collect::<Vec<_>>();
        layers.set_random_key(&random::key(2));
        let first = layers.iter().fold(x.clone(), |x, layer| forward(layer, &x));
        let next = layers[1].2.forward(&x);
        let expected = [vec![first, next], statistics()].concat();
        layers.buffers().iter().for_each(|(_, buffer)| buffer.reset());
        layers.set_random_key(&random::key(2));
        let y = scan_layers(&layers, &x, forward);
        let next = layers[1].2.forward(&x);
        let actual = [vec![y, next], statistics()].concat();
        let all: Vec<&Tensor> = expected.iter().chain(&actual).collect();
        let values: Vec<Vec<f64>> = Runtime::global()
            .unwrap()
            .eval_many(&all)
            .unwrap()
            .iter()
            .map(|v| v.to_f64())
            .collect();
        let (expected, actual) = values.split_at(expected.len());
        assert!(expected[0].contains(&0.0) && expected[2].iter().any(|mean| *mean != 0.0));
        for (i, (expected, actual)) in expected.iter().zip(actual).enumerate() {
            let error =
                expected.iter().zip(actual).fold(0.0f64, |error, (a, b)| error.max((a - b).abs()));
            assert!(error < 1e-5, "value {i} is {error:e} off");
        }
    }

    #[test]
    fn a_parameter_that_no_layer_uses_has_no_gradient() {
        let layers: Vec<_> = (0..2).map(|_| (Linear::new(4, 4), Linear::new(4, 4))).collect();
        layers.initialize(0);
        let y =
            scan_layers(&layers, &Tensor::ones(DType::F32, [2, 4]), |layer, x| layer.0.forward(x));
        let depends: Vec<bool> =
            layers.parameters().iter().map(|(_, p)| y.depends_on(&p.get())).collect();
        assert_eq!(depends, [true, true, false, false, true, true, false, false]);
    }

    #[test]
    fn values_that_lie_split_are_stacked_as_they_lie() {
        let layers: Vec<Linear> = (0..2).map(|_| Linear::new(4, 4)).collect();
        layers.initialize(0);
        let parts: Vec<Tensor> =
            layers.parameters().iter().map(|(_, parameter)| parameter.get()).collect();
        let whole: Vec<Tensor> =
            parts.iter().map(|t| t.all_gather(&Sharding::new([Some("data")]))).collect();
        layers
            .parameters()
            .iter()
            .zip(&whole)
            .for_each(|((_, p), whole)| p.variable().set(whole.clone()));
        let y =
            scan_layers(&layers, &Tensor::ones(DType::F32, [2, 4]), |layer, x| layer.forward(x));
        assert!(parts.iter().all(|t| y.depends_on(t)) && !whole.iter().any(|t| y.depends_on(t)));
    }

    #[test]
    fn layers_that_differ_are_refused() {
        let x = Tensor::ones(DType::F32, [2, 4]);
        let message = |layers: &[(Linear, Dropout)]| {
            layers.initialize(0);
            let y = scan_layers(layers, &x, |layer, x| layer.0.forward(x));
            y.fault().unwrap().message().to_owned()
        };
        let layer = || (Linear::new(4, 4), Dropout::new(0.5));
        let plain = (Linear::new(4, 4).bias(false), Dropout::new(0.5));
        let text = message(&[layer(), plain]);
        assert!(
            text.contains("layer 1 has") && text.contains("where layer 0 has `0.bias` f32[4]"),
            "{text}"
        );
        let quiet = layer();
        quiet.eval();
        let text = message(&[layer(), layer(), quiet]);
        assert!(text.contains("layer 2 has") && text.contains("evaluation mode"), "{text}");
        let shared = layer();
        let text = message(&[(Linear::new(4, 4), shared.1.clone()), shared]);
        assert!(text.contains("share a random stream"), "{text}");
    }
}
