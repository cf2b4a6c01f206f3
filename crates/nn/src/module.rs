//! [`Module`]: anything that holds named parameters, and the operations on whole models.

use std::collections::HashSet;
use std::panic::Location;

use fulmen_tensor::{DType, Tensor, Variable, random};

use crate::library::NN;
use crate::random_stream::{ModelKeys, State, StreamKey};
use crate::{Buffer, Error, Parameter, RandomStream, Result, TrainingMode, Visit, Visitor};

/// Anything that holds named parameters, buffers, mode switches and random streams.
///
/// The only required method is [`visit`](Module::visit), which `#[derive(Module)]` implements.
/// Names are PyTorch's: the names of fields joined by dots, with elements of lists counted from 0.
///
/// A clone of a parameter, buffer, switch or stream shares its state, so a clone of a module shares
/// everything with the original. To get several layers of a kind, make several: `(0..3).map(|_|
/// Linear::new(8, 8)).collect()`.
///
/// ```
/// use fulmen_nn::{BatchNorm2d, Conv2d, Linear, Module};
///
/// #[derive(Module)]
/// struct Block {
///     conv: Conv2d,
///     bn: BatchNorm2d,
/// }
///
/// #[derive(Module)]
/// struct Net {
///     layers: Vec<Block>,
///     fc: Linear,
///     temperature: f64,
/// }
///
/// let block = |inputs| Block { conv: Conv2d::new(inputs, 8, 3), bn: BatchNorm2d::new(8) };
/// let net = Net { layers: vec![block(3), block(8)], fc: Linear::new(8, 10), temperature: 1.0 };
/// let names: Vec<String> = net.parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names[4..7], ["layers.1.conv.weight", "layers.1.conv.bias", "layers.1.bn.weight"]);
/// assert_eq!(net.buffers()[3].0, "layers.1.bn.running_mean");
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a `Module`",
    note = "derive it with `#[derive(Module)]`, or mark the field `#[module(skip)]` if it holds no parameters",
    note = "a `Tensor` that training changes belongs in a `Parameter`, other state in a `Buffer`"
)]
pub trait Module {
    /// Visits everything that this module holds.
    fn visit(&self, visit: &mut Visit<'_>);

    /// The parameters with their names, in the order of the fields. A parameter with several names
    /// (tied weights) is listed once, under the first.
    fn parameters(&self) -> Vec<(String, Parameter)> {
        let mut parameters = Vec::new();
        let mut seen = HashSet::new();
        each_parameter(self, |name, parameter| {
            if seen.insert(parameter.address()) {
                parameters.push((name.into(), parameter.clone()));
            }
        });
        parameters
    }

    /// The buffers with their names, each once.
    fn buffers(&self) -> Vec<(String, Buffer)> {
        let mut buffers: Vec<(String, Buffer)> = Vec::new();
        each_buffer(self, |name, buffer| {
            if !buffers.iter().any(|(_, seen)| seen.variable().is(buffer.variable())) {
                buffers.push((name.into(), buffer.clone()));
            }
        });
        buffers
    }

    /// The content of a weight file: the cells of the parameters and then of the buffers, each
    /// once, under the first of its names.
    fn state(&self) -> Vec<(String, Variable)> {
        let parameters = self.parameters().into_iter().map(|(name, p)| (name, p.variable()));
        let buffers = self.buffers().into_iter().map(|(name, b)| (name, b.variable().clone()));
        parameters.chain(buffers).collect()
    }

    /// The total number of elements of all parameters; shared ones count once.
    fn num_parameters(&self) -> usize {
        self.parameters().iter().map(|(_, p)| p.ty().shape.num_elements()).sum()
    }

    /// Puts every layer into training mode, which is the initial mode.
    fn train(&self) {
        each_mode(self, |mode| mode.set_training(true));
    }

    /// Puts every layer into evaluation mode: dropout returns its input, and batch normalization
    /// uses its running statistics.
    fn eval(&self) {
        each_mode(self, |mode| mode.set_training(false));
    }

    /// Freezes all parameters (`false`) or lets training change them again (`true`).
    fn set_requires_grad(&self, requires_grad: bool) {
        each_parameter(self, |_, parameter| parameter.set_requires_grad(requires_grad));
    }

    /// Converts every floating-point parameter and buffer to another floating-point type, including
    /// their values, like PyTorch's `model.to(dtype)`. Integers do not change, for example the
    /// batch counter of batch normalization.
    ///
    /// ```
    /// use fulmen_nn::{BatchNorm2d, Module};
    /// use fulmen_tensor::DType;
    ///
    /// let layer = BatchNorm2d::new(8);
    /// layer.to_dtype(DType::Bf16)?;
    /// let types: Vec<String> = layer.state().iter().map(|(name, cell)| format!("{name} {}", cell.ty())).collect();
    /// assert_eq!(types[1..3], ["bias bf16[8]", "running_mean bf16[8]"]);
    /// assert_eq!(types[4], "num_batches_tracked i64[]");
    /// assert!(layer.to_dtype(DType::I32).unwrap_err().is_usage());
    /// # Ok::<(), fulmen_nn::Error>(())
    /// ```
    ///
    /// # Errors
    /// `dtype` is not a floating-point type; nothing is changed.
    #[track_caller]
    fn to_dtype(&self, dtype: DType) -> Result<()> {
        if !dtype.is_float() {
            let message =
                format!("parameters are floating-point numbers and cannot become {dtype}");
            return Err(Error::usage_at(message, Location::caller()));
        }
        let _scope = NN.open();
        let parameters = self.parameters();
        let scales: Vec<Parameter> =
            parameters.iter().filter_map(|(_, p)| Some(p.int8()?.scale)).collect();
        for (_, parameter) in parameters {
            // The scales of int8 weights stay f32: rounding them would change the weights again.
            let is_scale = scales.iter().any(|scale| scale.is(&parameter));
            if parameter.dtype().is_float() && !is_scale {
                parameter.convert(dtype);
            }
        }
        let buffers = self.buffers().into_iter().filter(|(_, buffer)| buffer.ty().dtype.is_float());
        buffers.for_each(|(_, buffer)| buffer.variable().to_dtype(dtype));
        Ok(())
    }

    /// Initializes every parameter that has no value yet.
    ///
    /// The value is an expression that draws on the device, with a key derived from the seed and
    /// the parameter's name. So it does not depend on the order of the layers or the number of
    /// devices.
    fn initialize(&self, seed: u64) {
        let key = random::key(seed);
        for (name, parameter) in self.parameters() {
            if !parameter.is_set() {
                parameter.initialize(&random::fold_in_name(&key, &name));
            }
        }
    }

    /// Resets every parameter and buffer to an initial value, even if it already has a value.
    fn reinitialize(&self, seed: u64) {
        let key = random::key(seed);
        for (name, parameter) in self.parameters() {
            parameter.initialize(&random::fold_in_name(&key, &name));
        }
        for (_, buffer) in self.buffers() {
            buffer.reset();
        }
    }

    /// Restarts every random stream with a key derived from this one and the stream's name. A
    /// training step does this with its own key, so that each step draws different numbers.
    fn set_random_key(&self, key: &Tensor) {
        #[derive(Default)]
        struct StreamVisitor {
            names: Vec<String>,
            streams: Vec<RandomStream>,
        }
        impl Visitor for StreamVisitor {
            fn random_stream(&mut self, name: &str, stream: &RandomStream) {
                // A shared stream uses the key of its first name, as a shared parameter does.
                if !self.streams.iter().any(|known| known.is(stream)) {
                    self.names.push(name.to_owned());
                    self.streams.push(stream.clone());
                }
            }
        }
        let mut found = StreamVisitor::default();
        self.visit(&mut Visit::new(&mut found));
        let keys = ModelKeys::new(key, &found.names);
        for (row, stream) in found.streams.iter().enumerate() {
            let key = Some(StreamKey::Row(keys.clone(), row));
            stream.set_state(State { key, drawn: 0 });
        }
    }
}

/// Calls `f` with each parameter, under each of its names.
pub(crate) fn each_parameter<M: Module + ?Sized>(module: &M, f: impl FnMut(&str, &Parameter)) {
    struct ParameterVisitor<F>(F);
    impl<F: FnMut(&str, &Parameter)> Visitor for ParameterVisitor<F> {
        fn parameter(&mut self, name: &str, parameter: &Parameter) {
            self.0(name, parameter);
        }
    }
    module.visit(&mut Visit::new(&mut ParameterVisitor(f)));
}

/// Calls `f` with each buffer, under each of its names.
pub(crate) fn each_buffer<M: Module + ?Sized>(module: &M, f: impl FnMut(&str, &Buffer)) {
    struct BufferVisitor<F>(F);
    impl<F: FnMut(&str, &Buffer)> Visitor for BufferVisitor<F> {
        fn buffer(&mut self, name: &str, buffer: &Buffer) {
            self.0(name, buffer);
        }
    }
    module.visit(&mut Visit::new(&mut BufferVisitor(f)));
}

pub(crate) fn each_mode<M: Module + ?Sized>(module: &M, f: impl FnMut(&TrainingMode)) {
    struct ModeVisitor<F>(F);
    impl<F: FnMut(&TrainingMode)> Visitor for ModeVisitor<F> {
        fn mode(&mut self, _: &str, mode: &TrainingMode) {
            self.0(mode);
        }
    }
    module.visit(&mut Visit::new(&mut ModeVisitor(f)));
}
