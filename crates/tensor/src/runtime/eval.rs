//! Compiles and runs expressions without a function: [`Tensor::eval`] and its variants.

use std::sync::Arc;

use super::Runtime;
use crate::as_tensor::as_tensors;
use crate::host_reads;
use crate::missing_values::check_no_placeholder;
use crate::scope::current_line;
use crate::tensor::Kind;
use crate::transfer::PendingLiterals;
use crate::{AsTensor, DeviceArray, Error, Function, Literal, Result, Sharding, Tensor};

impl Runtime {
    /// Compiles and runs an expression, and copies its value to the host.
    ///
    /// # Errors
    /// As for [`Runtime::compile`], or the run fails.
    #[track_caller]
    pub fn eval(&self, tensor: impl AsTensor) -> Result<Literal> {
        let tensor = tensor.as_tensor();
        let mut values = self.eval_many(&[tensor])?;
        values.pop().ok_or_else(|| Error::usage("the program returned no result"))
    }

    /// Compiles and runs several expressions as one program, and copies their values to the host in
    /// one transfer. Tensors that already have a value need no program.
    ///
    /// # Errors
    /// As for [`Runtime::compile`], or the run fails.
    #[track_caller]
    pub fn eval_many(&self, tensors: &[impl AsTensor]) -> Result<Vec<Literal>> {
        let tensors = as_tensors(tensors);
        for tensor in &tensors {
            tensor.check()?;
        }
        let mut values: Vec<Option<Literal>> =
            tensors.iter().map(|tensor| tensor.host_value()).collect();
        let missing: Vec<usize> = (0..tensors.len()).filter(|&i| values[i].is_none()).collect();
        let readable = |&i: &usize| tensors[i].array().filter(|array| array.is_readable());
        let expressions: Vec<&Tensor> =
            missing.iter().filter(|i| readable(i).is_none()).map(|&i| tensors[i]).collect();
        let computed =
            if expressions.is_empty() { Vec::new() } else { self.compute(&expressions)? };
        let mut next_computed = computed.iter();
        let arrays: Vec<&DeviceArray> = missing
            .iter()
            .filter_map(|i| readable(i).map(|array| &**array).or_else(|| next_computed.next()))
            .collect();
        if !arrays.is_empty() {
            host_reads::count(current_line());
            for (&i, literal) in missing.iter().zip(self.read(&arrays)?.wait()?) {
                values[i] = Some(literal);
            }
        }
        Ok(values.into_iter().flatten().collect())
    }

    /// Compiles and runs several expressions as one program. The results stay on the devices,
    /// replicated. Values in the expressions are inputs of the program, so that the same
    /// expressions with other values are not compiled again. When a line compiles its fifth
    /// program, there is a note: an event of the crate `tracing`, or a line on standard error if the
    /// process has no subscriber.
    ///
    /// # Errors
    /// As for [`Runtime::compile`], or the run fails.
    #[track_caller]
    pub fn compute(&self, tensors: &[impl AsTensor]) -> Result<Vec<DeviceArray>> {
        let line = current_line();
        let results: Vec<Tensor> = tensors.iter().map(|t| t.as_tensor().clone()).collect();
        check_no_placeholder(&results, line)?;
        let function = Function::new("eval", Vec::new(), results).constants_as_inputs();
        let compiled = self.compile(&function)?;
        if !compiled.was_cached() {
            self.shared.recompiles.count(line, function.results());
        }
        Ok(compiled.call(Vec::new())?.arrays)
    }

    /// The values of tensors on the devices. A value on the host is copied to every device, and
    /// expressions are computed as one program.
    #[track_caller]
    pub(crate) fn to_arrays(&self, tensors: &[Tensor]) -> Result<Vec<Arc<DeviceArray>>> {
        let is_expression = |tensor: &&Tensor| !tensor.has_value();
        let expressions: Vec<&Tensor> = tensors.iter().filter(is_expression).collect();
        for tensor in &expressions {
            tensor.check()?;
        }
        let computed =
            if expressions.is_empty() { Vec::new() } else { self.compute(&expressions)? };
        let mut next_computed = computed.into_iter();
        let replicated = Sharding::replicated();
        let array = |tensor: &Tensor| {
            let constant = match &tensor.node.kind {
                Kind::Array(array) => return self.array_here(array, &replicated),
                Kind::Host(elements) => {
                    let copied = self.host_to_devices(tensor.ty(), elements, &replicated);
                    return copied.map(Arc::new);
                }
                Kind::Operation(operation) => operation.host_value(),
                _ => None,
            };
            let array = match constant {
                Some(elements) => self.bytes_to_devices(tensor.ty(), elements, &replicated)?,
                None => next_computed
                    .next()
                    .ok_or_else(|| Error::usage("the program returned no result"))?,
            };
            Ok(Arc::new(array))
        };
        tensors.iter().map(array).collect()
    }
}

impl Tensor {
    /// Compiles and runs this expression on [`Runtime::global`], and copies the value to the host.
    /// A tensor that already has a value needs no runtime: the value is read where it is.
    ///
    /// # Errors
    /// - The expression is poisoned.
    /// - It depends on a placeholder, such as an input of a step that is being recorded.
    /// - The runtime fails.
    #[track_caller]
    pub fn eval(&self) -> Result<Literal> {
        // Report mistakes before looking for a device.
        self.check()?;
        if let Some(value) = self.host_value() {
            return Ok(value);
        }
        if let Some(array) = self.array().filter(|array| array.is_readable()) {
            host_reads::count(current_line());
            let mut values = PendingLiterals::start(&[array], array.metrics())?.wait()?;
            return values.pop().ok_or_else(|| Error::usage("the value could not be read"));
        }
        check_no_placeholder(std::slice::from_ref(self), current_line())?;
        Runtime::global()?.eval(self)
    }
}
