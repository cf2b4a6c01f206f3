//! [`Function`]: an expression with inputs, ready to compile.

use fulmen_durable::messages::quantity;

use crate::graph::Constants;
use crate::recorded_op::{RecordedOp, inspect};
use crate::scope::Scope;
use crate::tree::placeholders;
use crate::{Error, IntoTree, MatmulPrecision, Result, Sharding, Tensor, Tree};

/// An expression with inputs: results computed from parameters.
///
/// ```
/// use fulmen_tensor::{DType, Function, TensorType};
///
/// let square = Function::trace("square", TensorType::new(DType::F32, [4]), |x| &x * &x);
/// assert!(square.stablehlo()?.contains("stablehlo.multiply"));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[must_use]
pub struct Function {
    name: String,
    variant: String,
    parameters: Vec<Tensor>,
    results: Vec<Tensor>,
    aliases: Vec<Option<usize>>,
    /// Whether a parameter is donated to each result.
    is_aliased: Vec<bool>,
    parameter_shardings: Vec<Sharding>,
    result_shardings: Vec<Sharding>,
    precision: MatmulPrecision,
    constants: Constants,
}

impl Function {
    /// A function from `parameters` to `results`. The parameters must be different placeholders,
    /// else the function does not compile. Profiles and messages show the name.
    pub fn new(name: impl Into<String>, parameters: Vec<Tensor>, results: Vec<Tensor>) -> Function {
        let aliases = vec![None; parameters.len()];
        let is_aliased = vec![false; results.len()];
        let parameter_shardings = vec![Sharding::replicated(); parameters.len()];
        let result_shardings = vec![Sharding::replicated(); results.len()];
        Function {
            name: name.into(),
            variant: String::new(),
            parameters,
            results,
            aliases,
            is_aliased,
            parameter_shardings,
            result_shardings,
            precision: MatmulPrecision::Default,
            constants: Constants::InText,
        }
    }

    /// Calls `f` once with a placeholder for each of the inputs, and records the results that it
    /// returns. The inputs are any [`Tree`](trait@crate::Tree) of types, or of tensors with these
    /// types. The parameters of the function are the tensors of the tree, in order.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Function, TensorType};
    ///
    /// let ty = TensorType::new(DType::F32, [4]);
    /// let add = Function::trace("add", (&ty, &ty), |(a, b)| a + b);
    /// let sums = Function::trace("sums", (ty.clone(), ty), |(a, b)| (a.sum_all(), b.sum_all()));
    /// assert_eq!((add.results().len(), sums.results().len()), (1, 2));
    /// ```
    #[track_caller]
    pub fn trace<I: IntoTree, T: Tree>(
        name: impl Into<String>,
        inputs: I,
        f: impl FnOnce(I::Tree) -> T,
    ) -> Function {
        let _scope = Scope::open();
        let inputs = placeholders(&inputs.into_tree());
        let parameters = inputs.flatten();
        let results = Scope::outside(|| f(inputs));
        Function::new(name, parameters, results.flatten())
    }

    /// Donates a parameter to a result, both given by index. The result reuses the parameter's
    /// memory, and a call of the compiled function consumes the argument.
    ///
    /// # Errors
    /// There is no such parameter or result, their types differ, or one of them already takes part
    /// in a donation.
    pub fn donate(mut self, parameter: usize, result: usize) -> Result<Function> {
        let (Some(p), Some(r)) = (self.parameters.get(parameter), self.results.get(result)) else {
            return Err(Error::usage(format!(
                "{}: cannot donate parameter {parameter} to result {result}: there are {} and {}",
                self.name,
                quantity(self.parameters.len(), "parameter"),
                quantity(self.results.len(), "result")
            )));
        };
        r.check()?;
        if p.ty() != r.ty() {
            return Err(Error::usage(format!(
                "{}: cannot donate parameter {parameter}, {}, to result {result}, {}: the types differ",
                self.name,
                p.ty(),
                r.ty()
            )));
        }
        if self.aliases[parameter].is_some() || self.is_aliased[result] {
            return Err(Error::usage(format!(
                "{}: parameter {parameter} or result {result} already takes part in a donation",
                self.name
            )));
        }
        self.aliases[parameter] = Some(result);
        self.is_aliased[result] = true;
        Ok(self)
    }

    /// Sets the sharding of the parameter with this index. By default, parameters are replicated.
    /// Does nothing if there is no such parameter.
    pub fn shard_parameter(mut self, parameter: usize, sharding: Sharding) -> Function {
        if let Some(slot) = self.parameter_shardings.get_mut(parameter) {
            *slot = sharding;
        }
        self
    }

    /// Sets the sharding of the result with this index. By default, results are replicated. Does
    /// nothing if there is no such result.
    pub fn shard_result(mut self, result: usize, sharding: Sharding) -> Function {
        if let Some(slot) = self.result_shardings.get_mut(result) {
            *slot = sharding;
        }
        self
    }

    /// Sets the precision of f32 matrix products and convolutions; see [`MatmulPrecision`].
    ///
    /// ```
    /// use fulmen_tensor::{DType, Function, MatmulPrecision, TensorType};
    ///
    /// let square = Function::trace("square", TensorType::new(DType::F32, [4, 4]), |x| x.matmul(&x));
    /// let square = square.matmul_precision(MatmulPrecision::Highest);
    /// assert!(square.stablehlo()?.contains("precision = [HIGHEST, HIGHEST]"));
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    pub fn matmul_precision(mut self, precision: MatmulPrecision) -> Function {
        self.precision = precision;
        self
    }

    /// Makes every value in the expression (`from_slice`, `scalar`, `Literal::to_tensor`, random
    /// keys) an input of the program, so that the same expression with other values is the same
    /// program. By default, values of up to 1,024 bytes are part of the program, so that the
    /// compiler can fold them.
    ///
    /// Use this for programs that run once, as [`Tensor::eval`] does: each compilation copies the
    /// values to the devices. Plain numbers in the expression (`x * 2.0`, [`Tensor::full`]) remain
    /// part of the program.
    ///
    /// ```
    /// use fulmen_tensor::{Function, Mesh, Tensor};
    ///
    /// let double = |x: [f32; 2]| Function::new("double", Vec::new(), vec![Tensor::from_slice(&x, [2]) * 2.0]);
    /// assert_ne!(double([1.0, 2.0]).stablehlo()?, double([3.0, 4.0]).stablehlo()?);
    /// let double = |x| double(x).constants_as_inputs();
    /// assert_eq!(double([1.0, 2.0]).stablehlo()?, double([3.0, 4.0]).stablehlo()?);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    pub fn constants_as_inputs(mut self) -> Function {
        self.constants = Constants::AsInputs;
        self
    }

    /// Distinguishes this function from others of the same name that a program needs too, such as
    /// the same step for batches of another length. Notes about the compile cache compare only
    /// functions of one variant. A second call adds to the first. The compiled program does not
    /// depend on it.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Function, TensorType};
    ///
    /// let square = |n| Function::trace("square", TensorType::new(DType::F32, [n]), |x| &x * &x);
    /// let functions: Vec<Function> = [64, 128].map(|n| square(n).variant(format!("length {n}"))).into();
    /// # drop(functions);
    /// ```
    pub fn variant(mut self, variant: impl AsRef<str>) -> Function {
        let variant = variant.as_ref();
        if !self.variant.is_empty() && !variant.is_empty() {
            self.variant.push_str(", ");
        }
        self.variant.push_str(variant);
        self
    }

    pub(crate) fn variant_name(&self) -> &str {
        &self.variant
    }

    pub(crate) fn constants(&self) -> Constants {
        self.constants
    }

    /// The precision of f32 matrix products and convolutions.
    pub fn precision(&self) -> MatmulPrecision {
        self.precision
    }

    /// The function's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The parameters.
    pub fn parameters(&self) -> &[Tensor] {
        &self.parameters
    }

    /// The results.
    pub fn results(&self) -> &[Tensor] {
        &self.results
    }

    /// For each parameter, the index of the result that it is donated to.
    pub(crate) fn aliases(&self) -> &[Option<usize>] {
        &self.aliases
    }

    /// The sharding of each parameter.
    pub fn parameter_shardings(&self) -> &[Sharding] {
        &self.parameter_shardings
    }

    /// The sharding of each result.
    pub fn result_shardings(&self) -> &[Sharding] {
        &self.result_shardings
    }

    /// The recorded values, operands before users, in the order of recording: operations, the
    /// parameters that they use, and values that the expression holds.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Function, TensorType};
    ///
    /// let square = Function::trace("square", TensorType::new(DType::F32, [4]), |x| &x * &x);
    /// let recorded = square.recorded()?;
    /// assert_eq!((recorded[0].parameter, recorded[1].operation), (Some(0), Some("mul")));
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// A result is poisoned.
    pub fn recorded(&self) -> Result<Vec<RecordedOp>> {
        inspect(&self.parameters, &self.results)
    }
}
