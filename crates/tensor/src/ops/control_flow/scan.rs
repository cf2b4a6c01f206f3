//! Loops with a known number of steps: [`scan`]. Its derivative is in `scan_derivative.rs`.

use std::fmt;
use std::sync::{Arc, Mutex};

use fulmen_durable::messages::quantity;

use super::carry::Carry;
use super::scan_derivative::Derivative;
use super::{Derivatives, borrowed};
use crate::gradient_flow::active_in_loop;
use crate::lower::Lowering;
use crate::operation::{Contents, Operation, RecomputePolicy, RunBody, Vjp};
use crate::region::{Region, parameters};
use crate::scope::{Refusal, Scope};
use crate::tensor::{all_live, next_id};
use crate::tree::label;
use crate::{DType, IntoTree, Tensor, TensorType, Tree};

/// One step. Its parameters are the carry, a slice of each x, and the captured tensors. Its results
/// are the carry and a slice of each y.
pub(super) struct Step {
    pub(super) region: Region,
    pub(super) carries: usize,
    pub(super) xs: usize,
    /// The values of a step that derivatives need, in the order of their requests.
    pub(super) residuals: Mutex<Vec<Tensor>>,
    pub(super) derivatives: Derivatives<Derivative>,
}

impl Step {
    pub(super) fn new(region: Region, carries: usize, xs: usize) -> Arc<Step> {
        Arc::new(Step {
            region,
            carries,
            xs,
            residuals: Mutex::default(),
            derivatives: Derivatives::new(),
        })
    }
}

/// The loop. Two loops with the same step differ only in how many residuals they return as further
/// ys.
#[derive(Clone)]
pub(super) struct Loop {
    pub(super) step: Arc<Step>,
    pub(super) residuals: Vec<Tensor>,
    pub(super) length: usize,
    pub(super) reverse: bool,
}

impl Loop {
    /// The carry, the ys and the residuals. There is at least one.
    pub(super) fn apply(self, inputs: &[Tensor]) -> Vec<Tensor> {
        Tensor::apply_all(self, &borrowed(inputs))
    }

    /// The results of a step, followed by the residuals.
    pub(super) fn results(&self) -> Vec<Tensor> {
        self.step.region.results.iter().chain(&self.residuals).cloned().collect()
    }
}

/// The type of `length` stacked values of type `ty`.
fn stack_type(length: usize, ty: &TensorType) -> TensorType {
    TensorType::new(
        ty.dtype,
        std::iter::once(length).chain(ty.shape.iter().copied()).collect::<Vec<_>>(),
    )
}

impl Operation for Loop {
    fn name(&self) -> &'static str {
        "scan"
    }
    fn infer(&self, _: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let carries = self.step.carries;
        let ty = |(i, t): (usize, &Tensor)| {
            if i < carries { t.ty().clone() } else { stack_type(self.length, t.ty()) }
        };
        Ok(self.results().iter().enumerate().map(ty).collect())
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        self.scan_vjp(cx)
    }
    fn active_results(&self, active: &[bool], _: usize) -> Vec<bool> {
        let results = self.results();
        active_in_loop(&self.step.region.parameters, &results, self.step.carries, active).1
    }
    fn contents(&self) -> Contents<'_> {
        let region = &self.step.region;
        let operands = (0..region.parameters.len()).collect();
        let results = self.results();
        Contents::Run(vec![RunBody { region, operands, results, is_condition: false }])
    }
    fn recompute_policy(&self) -> RecomputePolicy {
        RecomputePolicy::Never
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let carries = self.step.carries;
        let xs = self.step.xs;
        let scalar = TensorType::scalar(DType::I32).stablehlo();
        let results = cx.results().to_vec();
        let mut init: Vec<String> = (0..carries).map(|i| cx.operand(i).to_owned()).collect();
        for ty in &results[carries..] {
            init.push(cx.statement(format!(
                "stablehlo.constant dense<{}> : {}",
                zero(ty.dtype),
                ty.stablehlo()
            )));
        }
        init.push(cx.constant(DType::I32, "0"));
        // The counter is the last value of the loop, so that the other values have the numbers of
        // the operation's results.
        let names: Vec<String> = init.iter().map(|_| cx.fresh()).collect();
        let counter = names[results.len()].clone();
        cx.extra_results(1);
        cx.block("} do {".to_owned(), |cx| {
            let end = cx.constant(DType::I32, &self.length.to_string());
            let compare = format!(
                "stablehlo.compare LT, {counter}, {end} : ({scalar}, {scalar}) -> tensor<i1>"
            );
            vec![(cx.statement(compare), TensorType::scalar(DType::Bool))]
        });
        cx.block("}".to_owned(), |cx| {
            let index = if self.reverse {
                let last = cx.constant(DType::I32, &self.length.saturating_sub(1).to_string());
                cx.statement(format!("stablehlo.subtract {last}, {counter} : {scalar}"))
            } else {
                counter.clone()
            };
            // The start indices of the slices of a value of this rank, and the types of these
            // indices.
            let start = |cx: &mut Lowering<'_>, rank: usize| {
                let zero = cx.constant(DType::I32, "0");
                let starts: Vec<&str> = (0..rank).map(|i| if i == 0 { index.as_str() } else { &zero }).collect();
                (starts.join(", "), vec![scalar.as_str(); rank].join(", "))
            };
            let mut arguments: Vec<String> = names[..carries].to_vec();
            for i in carries..carries + xs {
                let from = cx.operand_type(i).clone();
                let ty = self.step.region.parameters[i].ty().clone();
                let one = stack_type(1, &ty);
                let (starts, start_types) = start(cx, from.shape.rank());
                let slice = cx.statement(format!(
                    "stablehlo.dynamic_slice {}, {starts}, sizes = {:?} : ({}, {start_types}) -> {}",
                    cx.operand(i).to_owned(),
                    one.shape.dims(),
                    from.stablehlo(),
                    one.stablehlo()
                ));
                let one = one.stablehlo();
                let ty = ty.stablehlo();
                arguments.push(cx.statement(format!("stablehlo.reshape {slice} : ({one}) -> {ty}")));
            }
            arguments.extend((carries + xs..self.step.region.parameters.len()).map(|i| cx.operand(i).to_owned()));
            let mut values = cx.expression(&self.step.region.parameters, &arguments, &self.results());
            for (i, (name, ty)) in values.iter_mut().enumerate().skip(carries) {
                let one = stack_type(1, ty);
                let whole = &results[i];
                let one_ty = one.stablehlo();
                let whole_ty = whole.stablehlo();
                let slice = cx.statement(format!("stablehlo.reshape {name} : ({}) -> {one_ty}", ty.stablehlo()));
                let (starts, start_types) = start(cx, one.shape.rank());
                *name = cx.statement(format!(
                    "stablehlo.dynamic_update_slice {}, {slice}, {starts} : ({whole_ty}, {one_ty}, {start_types}) -> \
                     {whole_ty}",
                    names[i]
                ));
                *ty = whole.clone();
            }
            let one = cx.constant(DType::I32, "1");
            let next = cx.statement(format!("stablehlo.add {counter}, {one} : {scalar}"));
            values.push((next, TensorType::scalar(DType::I32)));
            values
        });
        let bindings: Vec<_> =
            names.iter().zip(&init).map(|(name, init)| format!("{name} = {init}")).collect();
        let mut types: Vec<_> = results.iter().map(TensorType::stablehlo).collect();
        types.push(scalar);
        format!("stablehlo.while({}) : {} cond {{", bindings.join(", "), types.join(", "))
    }
    fn key(&self) -> String {
        // The residuals are not part of the key: of two loops with one step, the loop with more
        // residuals has all results of the other.
        format!("{:p} {} {}", Arc::as_ptr(&self.step), self.length, self.reverse)
    }
}

impl fmt::Debug for Loop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scan of {}", quantity(self.length, "step"))
    }
}

/// Zero in MLIR's syntax.
fn zero(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "false",
        _ if dtype.is_float() => "0.0",
        _ if dtype.is_complex() => "(0.0, 0.0)",
        _ => "0",
    }
}

/// Options of [`scan`]: the number of steps and the direction.
///
/// ```
/// use fulmen_tensor::{Scan, Tensor};
///
/// // Powers of two without xs, stacked in reverse.
/// let scan = Scan::new().length(4).reverse(true);
/// let (carry, ys) = scan.run(Tensor::scalar(1i32), (), |carry, ()| (&carry * 2.0, carry));
/// assert_eq!(carry.eval()?.to_vec::<i32>()?, [16]);
/// assert_eq!(ys.eval()?.to_vec::<i32>()?, [8, 4, 2, 1]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Scan {
    length: Option<usize>,
    reverse: bool,
}

/// A traced step: the id of its first node, its parameters and its results.
struct TracedStep {
    start: u64,
    parameters: Vec<Tensor>,
    carry: Carry,
    ys: Vec<Tensor>,
}

impl Scan {
    /// Scans forward. The xs determine the number of steps.
    pub fn new() -> Scan {
        Scan::default()
    }

    /// Sets the number of steps. It is required without xs; with xs it must match their first axes.
    pub fn length(self, length: usize) -> Scan {
        Scan { length: Some(length), ..self }
    }

    /// Whether to scan from the last slice to the first. Each y is at the index of its x.
    pub fn reverse(self, reverse: bool) -> Scan {
        Scan { reverse, ..self }
    }

    /// Runs `f` over the steps; see [`scan`].
    #[track_caller]
    pub fn run<C: IntoTree, X: IntoTree, Y: Tree>(
        self,
        init: C,
        xs: X,
        f: impl FnOnce(C::Tree, X::Tree) -> (C::Tree, Y),
    ) -> (C::Tree, Y) {
        let _scope = Scope::open();
        let init = init.into_tree();
        let xs = xs.into_tree();
        let first = Carry::of(&init);
        let sequences = xs.flatten();
        let check = || {
            all_live(first.tensors.iter().chain(&sequences))?;
            Ok::<_, Refusal>(self.steps(&borrowed(&sequences), &xs.names())?)
        };
        let length = match check() {
            Ok(length) => length,
            Err(refusal) => {
                // Only the body knows the tree of the ys.
                let poisoned = Tensor::refused("scan", refusal);
                let poison = &mut |_: &Tensor| poisoned.clone();
                let carry = init.map_tensors(poison);
                let x = xs.map_tensors(poison);
                let (_, ys) = Scope::outside(|| f(carry, x));
                return (init.map_tensors(poison), ys.map_tensors(poison));
            }
        };
        let start = next_id();
        let carries = parameters("scan", "carry", first.tensors.iter().map(Tensor::ty));
        let slice_types: Vec<_> =
            sequences.iter().map(|x| TensorType::new(x.dtype(), &x.shape().dims()[1..])).collect();
        let slices = parameters("scan", "the slice of x", &slice_types);
        let carry = init.unflatten(carries.iter().cloned());
        let x = xs.unflatten(slices.iter().cloned());
        let (carry, ys) = Scope::outside(|| f(carry, x));
        let traced = TracedStep {
            start,
            parameters: [carries, slices].concat(),
            carry: Carry::of(&carry),
            ys: ys.flatten(),
        };
        match self.close(&first, &borrowed(&sequences), length, traced) {
            Ok((last, stacked)) => (init.unflatten(last), ys.unflatten(stacked)),
            Err(refusal) => {
                let poisoned = Tensor::refused("scan", refusal);
                let poison = &mut |_: &Tensor| poisoned.clone();
                (init.map_tensors(poison), ys.map_tensors(poison))
            }
        }
    }

    /// Builds the loop over a traced step, and returns the last carry and the ys.
    fn close(
        self,
        init: &Carry,
        xs: &[&Tensor],
        length: usize,
        traced: TracedStep,
    ) -> Result<(Vec<Tensor>, Vec<Tensor>), Refusal> {
        let TracedStep { start, parameters, carry, ys } = traced;
        all_live(carry.tensors.iter().chain(&ys))?;
        init.same(&carry)?;
        let init = &init.tensors[..];
        if length == 0 {
            let empty =
                ys.iter().map(|y| Tensor::zeros(y.dtype(), stack_type(0, y.ty()).shape)).collect();
            return Ok((init.to_vec(), empty));
        }
        if init.is_empty() && ys.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let results: Vec<Tensor> = carry.tensors.into_iter().chain(ys).collect();
        // An x that no step uses is not an input, so that nothing depends on it.
        let is_used = |slice: &Tensor| results.iter().any(|result| result.depends_on(slice));
        let (carries, slices) = parameters.split_at(init.len());
        let (xs, slices): (Vec<&Tensor>, Vec<&Tensor>) =
            xs.iter().copied().zip(slices).filter(|(_, slice)| is_used(slice)).unzip();
        let parameters = carries.iter().chain(slices.iter().copied()).cloned().collect();
        let (region, captures) = Region::close("scan", start, parameters, &results);
        let inputs: Vec<Tensor> =
            init.iter().chain(xs.iter().copied()).cloned().chain(captures).collect();
        let step = Step::new(region, init.len(), xs.len());
        let mut outputs =
            Loop { step, residuals: Vec::new(), length, reverse: self.reverse }.apply(&inputs);
        all_live(&outputs)?;
        let ys = outputs.split_off(init.len());
        Ok((outputs, ys))
    }

    /// The number of steps, or an error message.
    fn steps(&self, xs: &[&Tensor], names: &[String]) -> Result<usize, String> {
        let mut length = self.length;
        for (x, name) in xs.iter().zip(names) {
            let name = label("x", name);
            let Some(&size) = x.shape().first() else {
                return Err(format!(
                    "{name} is a scalar, {}; a scan iterates over the first axis of each x",
                    x.ty()
                ));
            };
            let expected = *length.get_or_insert(size);
            if expected != size {
                let other = match self.length {
                    Some(_) => "the length is".to_owned(),
                    None => format!("{} has", label("x", &names[0])),
                };
                return Err(format!(
                    "{name}, {}, has {size} slices along its first axis, and {other} {expected}; the numbers must be equal",
                    x.ty(),
                ));
            }
        }
        match length {
            Some(length) if i32::try_from(length).is_err() => {
                Err(format!("{length} steps are more than an i32 can count"))
            }
            Some(length) => Ok(length),
            None => {
                Err("there are no xs; set the number of steps with Scan::new().length(n)"
                    .to_owned())
            }
        }
    }
}

/// Iterates over the slices of `xs` along their first axis and passes a carry, at first `init`,
/// from step to step (JAX's `lax.scan`): `(carry, y) = f(carry, x)`. Returns the last carry, and
/// the ys of all steps stacked along a new first axis.
///
/// `f` is called once, with symbolic tensors. A program contains its body once, however many steps
/// there are: a model of many equal layers compiles as fast as a single layer. The carry, xs and ys
/// are any [`Tree`](trait@crate::Tree), and the types of the carry must not change. `f` may use
/// tensors from outside.
///
/// Gradients flow to `init`, `xs` and the tensors from outside. The backward pass is a scan in the
/// other direction. The forward pass keeps what the backward pass needs of each step, unless a step
/// uses [`checkpoint`](super::checkpoint()).
///
/// To scan without a carry, use [`map`](super::map()) or pass `()`. To scan without xs or in
/// reverse, use [`Scan`]. Poisoned if the xs differ in length, or if the
/// type of the carry changes. Don't set a [`Variable`](crate::Variable) in `f`: it would hold a
/// value that exists only within a step. Pass the value on as a carry instead. A random key from
/// outside gives the same numbers in each step: fold the number of the step into the key.
///
/// ```
/// use fulmen_tensor::{Tensor, grad, scan};
///
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3]);
/// let (sum, sums) = scan(Tensor::scalar(0.0f32), &x, |sum, x| {
///     let sum = sum + &x * &x;
///     (sum.clone(), sum)
/// });
/// assert_eq!(sums.eval()?.to_vec::<f32>()?, [1.0, 5.0, 14.0]);
/// assert_eq!(grad(&sum, &[&x])[0].eval()?.to_vec::<f32>()?, [2.0, 4.0, 6.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn scan<C: IntoTree, X: IntoTree, Y: Tree>(
    init: C,
    xs: X,
    f: impl FnOnce(C::Tree, X::Tree) -> (C::Tree, Y),
) -> (C::Tree, Y) {
    Scan::new().run(init, xs, f)
}
