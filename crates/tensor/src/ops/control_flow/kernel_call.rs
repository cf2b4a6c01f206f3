//! Computations with a second form that only a compiler for some device knows: [`kernel_call`].
//!
//! The first form is an expression, which every compiler knows. Out of scope: which platform takes
//! the second form, see `passes/kernel_calls.rs`; how a kernel is written, see `fulmen-kernels`.

use std::fmt;
use std::sync::Arc;

use super::{borrowed, types};
use crate::as_tensor::as_tensors;
use crate::lower::{Lowering, identifier};
use crate::operation::{Contents, Operation, RecomputePolicy, Vjp};
use crate::region::{Region, parameters};
use crate::scope::Scope;
use crate::tensor::{all_live, next_id};
use crate::whole_axes::WholeAxes;
use crate::{AsTensor, Mesh, Tensor, TensorType};

/// The second form of a computation: a call that a compiler knows by its name.
#[derive(Clone)]
pub struct OpaqueCall {
    /// The name of the function.
    pub target: String,
    /// What the compiler needs to know, in the function's own format.
    pub config: String,
    /// How devices share the work; `None` if each must do all of it.
    pub parts: Option<OpaqueParts>,
}

/// How a call is done in equal parts along the first axis of its operands and results.
#[derive(Clone)]
pub struct OpaqueParts {
    /// The largest number of parts. Their number divides it.
    pub most: usize,
    /// Whether each operand is split. The others are whole in each part.
    pub is_split: Vec<bool>,
    /// The configuration of one of this many parts. All results are split.
    pub config: Arc<dyn Fn(usize) -> String + Send + Sync>,
}

/// Both forms.
struct Kernel {
    name: String,
    region: Region,
    opaque: OpaqueCall,
}

/// The operation with the first form, which a program contains unless a pass replaces it.
pub(crate) struct KernelCall(Arc<Kernel>);

impl KernelCall {
    /// The second form.
    pub(crate) fn opaque(&self) -> &OpaqueCall {
        &self.0.opaque
    }

    /// The operation with the second form.
    pub(crate) fn as_custom_call(&self) -> CustomCall {
        CustomCall(self.0.clone())
    }
}

impl Operation for KernelCall {
    fn name(&self) -> &'static str {
        "kernel_call"
    }
    fn infer(&self, _: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(types(&self.0.region.results))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        self.0.no_derivative(cx)
    }
    fn contents(&self) -> Contents<'_> {
        Contents::Called(&self.0.region)
    }
    fn recompute_policy(&self) -> RecomputePolicy {
        RecomputePolicy::Never
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let name = cx.function(&self.0.name, &self.0.region);
        format!("func.call @{name}({}) : {}", cx.operands(), cx.signature())
    }
    fn key(&self) -> String {
        format!("{:p}", Arc::as_ptr(&self.0))
    }
}

impl fmt::Debug for KernelCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel_call of {}", self.0.name)
    }
}

/// The operation with the second form.
pub(crate) struct CustomCall(Arc<Kernel>);

impl Operation for CustomCall {
    fn name(&self) -> &'static str {
        "kernel_call"
    }
    fn infer(&self, _: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(types(&self.0.region.results))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        self.0.no_derivative(cx)
    }
    fn check(&self, mesh: &Mesh, inputs: &[&TensorType]) -> Result<WholeAxes, String> {
        if self.parts_on(mesh).is_some() {
            return Ok(WholeAxes::default());
        }
        // The compiler cannot split what it does not look into.
        let all = |ty: &TensorType| (0..ty.shape.rank()).collect::<Vec<_>>();
        Ok(WholeAxes {
            operands: inputs.iter().map(|ty| all(ty)).collect(),
            results: self.0.region.results.iter().map(|t| all(t.ty())).collect(),
            ..WholeAxes::default()
        })
    }
    fn recompute_policy(&self) -> RecomputePolicy {
        RecomputePolicy::Never
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let operands: Vec<TensorType> = types(&self.0.region.parameters);
        let results = cx.results().to_vec();
        let names = cx.operands();
        let mesh = cx.mesh().clone();
        let Some(parts) = self.parts_on(&mesh) else {
            return self.statement(&self.0.opaque.config, &names, &operands, &results);
        };
        let devices = mesh.num_devices();
        let is_split = |number: usize| parts.is_split.get(number).copied().unwrap_or(false);
        let part = |ty: &TensorType, is_split: bool| {
            let mut dims = ty.shape.dims().to_vec();
            dims[0] /= if is_split { devices } else { 1 };
            TensorType::new(ty.dtype, dims)
        };
        let numbered = || operands.iter().enumerate();
        let part_operands: Vec<_> = numbered().map(|(i, ty)| part(ty, is_split(i))).collect();
        let part_results: Vec<_> = results.iter().map(|ty| part(ty, true)).collect();
        let part_names: Vec<String> = operands.iter().map(|_| cx.fresh()).collect();
        let call = cx.fresh();
        let config = (parts.config)(devices);
        let inner = self.statement(&config, &part_names.join(", "), &part_operands, &part_results);
        let axes: Vec<String> = mesh.axes().iter().map(|(name, _)| format!("{name:?}")).collect();
        let axes = axes.join(", ");
        let sharding = |ty: &TensorType, is_split: bool| {
            let first = if is_split { axes.as_str() } else { "" };
            let others = ", {}".repeat(ty.shape.rank() - 1);
            format!("<@mesh, [{{{first}}}{others}]>")
        };
        let in_shardings: Vec<_> = numbered().map(|(i, ty)| sharding(ty, is_split(i))).collect();
        let out_shardings: Vec<_> = results.iter().map(|ty| sharding(ty, true)).collect();
        let arguments: Vec<String> = (part_names.iter().zip(&part_operands))
            .map(|(name, ty)| format!("{name}: {}", ty.stablehlo()))
            .collect();
        let count = results.len();
        let returned: Vec<String> = match count {
            1 => vec![call.clone()],
            _ => (0..count).map(|i| format!("{call}#{i}")).collect(),
        };
        let defined = if count == 1 { call } else { format!("{call}:{count}") };
        format!(
            "sdy.manual_computation({names}) in_shardings=[{}] out_shardings=[{}] manual_axes={{{axes}}} ({}) {{\n    \
             {defined} = {inner}\n    sdy.return {} : {}\n  }} : {}",
            in_shardings.join(", "),
            out_shardings.join(", "),
            arguments.join(", "),
            returned.join(", "),
            listed(&part_results),
            cx.signature()
        )
    }
    fn key(&self) -> String {
        format!("{:p}", Arc::as_ptr(&self.0))
    }
}

impl CustomCall {
    /// How the devices of a mesh share the work; `None` if each does all of it.
    fn parts_on(&self, mesh: &Mesh) -> Option<&OpaqueParts> {
        let devices = mesh.num_devices();
        self.0
            .opaque
            .parts
            .as_ref()
            .filter(|parts| devices > 1 && parts.most.is_multiple_of(devices))
    }

    /// The right-hand side of the statement. All values are row-major.
    fn statement(
        &self,
        config: &str,
        names: &str,
        operands: &[TensorType],
        results: &[TensorType],
    ) -> String {
        let layouts = |types: &[TensorType]| {
            let layout = |ty: &TensorType| {
                let rank = ty.shape.rank();
                let axes: Vec<String> = (0..rank).rev().map(|axis| axis.to_string()).collect();
                format!("dense<[{}]> : tensor<{rank}xindex>", axes.join(", "))
            };
            types.iter().map(layout).collect::<Vec<_>>().join(", ")
        };
        let result_types = match results {
            [one] => one.stablehlo(),
            many => format!("({})", listed(many)),
        };
        format!(
            "stablehlo.custom_call @{}({names}) {{backend_config = \"{}\", kernel_name = \"{}\", operand_layouts = [{}], \
             result_layouts = [{}]}} : ({}) -> {result_types}",
            self.0.opaque.target,
            config.replace('\\', "\\5C").replace('"', "\\22"),
            self.0.name,
            layouts(operands),
            layouts(results),
            listed(operands)
        )
    }
}

/// The types as StableHLO writes them, separated by commas.
fn listed(types: &[TensorType]) -> String {
    types.iter().map(TensorType::stablehlo).collect::<Vec<_>>().join(", ")
}

impl fmt::Debug for CustomCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "custom_call of {}", self.0.name)
    }
}

impl Kernel {
    fn no_derivative(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let message = format!(
            "the kernel `{}` has no derivative; join it with one by custom_gradient()",
            self.name
        );
        vec![Some(Tensor::poison("kernel_call", message)); cx.inputs.len()]
    }
}

/// Computes `f(inputs)`, or `opaque`, which must compute the same, where a pass chooses it. `f` is
/// called once, with symbolic tensors; it must not use tensors from outside. The results have no
/// derivative.
#[track_caller]
pub fn kernel_call(
    name: &str,
    inputs: &[impl AsTensor],
    f: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    opaque: OpaqueCall,
) -> Vec<Tensor> {
    let _scope = Scope::open();
    let inputs = &as_tensors(inputs)[..];
    let start = next_id();
    let own = parameters("kernel_call", "input", inputs.iter().map(|t| t.ty()));
    let results = Scope::outside(|| f(&own));
    if let Err(fault) = all_live(inputs.iter().copied().chain(&results)) {
        return vec![Tensor::poisoned(fault); results.len()];
    }
    // Results that do not depend on the inputs are inside, too: a kernel may fill its output.
    let (region, captures) = Region::close_since("kernel_call", start, own, &results);
    if let Some(captured) = captures.first() {
        let message = format!("the kernel `{name}` uses a tensor from outside, {}", captured.ty());
        return vec![Tensor::poison("kernel_call", message); results.len()];
    }
    let kernel = Kernel { name: identifier(name), region, opaque };
    let inputs: Vec<Tensor> = inputs.iter().map(|&t| t.clone()).collect();
    Tensor::apply_all(KernelCall(Arc::new(kernel)), &borrowed(&inputs))
}
