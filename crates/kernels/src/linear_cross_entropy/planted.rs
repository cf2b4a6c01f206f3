//! Planted mistakes: each changes one kernel in an index map, a mask or a sum, and a comparison with
//! the formula in f64 must notice it.

use fulmen_tensor::{DType, Literal, Runtime, Tensor, grad};

use super::{Kernels, LinearCrossEntropy, Sized, Sizes};
use crate::grid;
use crate::index::{Compare, Condition, Index};
use crate::program::{Binary, Kernel, Operation, Role, Statement};

/// Several blocks of tokens and of classes, the last of which are partly padding.
const SIZES: Sizes = Sizes { groups: 2, tokens: 24, classes: 40, width: 4, dtype: DType::F32 };

/// The kernels without a mistake differ by less. All mistakes differ by more.
const TOLERANCE: f64 = 2e-5;

/// A kernel with a mistake, and what the mistake is.
type Mistake = (String, Kernel);

/// Numbers between -1 and 1 that repeat only after many elements.
fn numbers(shape: &[usize], seed: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let number = |i: usize| ((i * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0;
    Tensor::from_slice(&(0..count).map(number).collect::<Vec<f32>>(), shape)
}

/// The inputs of the kernels, and their results by the formula.
struct Case {
    inputs: [Tensor; 3],
    /// The logarithms of the sums, and the cotangents of the three results.
    numbers: Vec<Tensor>,
    /// The results of the three kernels.
    exact: [Vec<Literal>; 3],
}

impl Case {
    /// If all logits are far below 0, the logit of padding would be the largest.
    fn new(is_low: bool) -> Case {
        let Sizes { groups, tokens, classes, width, .. } = SIZES;
        let of = |shape: &[usize], seed| {
            let numbers = numbers(shape, seed) * 2.0;
            if is_low { numbers + 7.0 } else { numbers }
        };
        let x = of(&[groups, tokens, width], 1);
        let weight = if is_low { -of(&[classes, width], 2) } else { of(&[classes, width], 2) };
        let target = |i: usize| (i * 17 % (classes + 5)) as i32; // some are no classes
        let targets: Vec<i32> = (0..groups * tokens).map(target).collect();
        let targets = Tensor::from_slice(&targets, [groups, tokens]);
        let cotangents = [3, 4, 5].map(|seed| numbers(&[groups, tokens], seed));

        let [wide_x, wide_weight] = [&x, &weight].map(|x| x.to_dtype(DType::F64));
        let logits = wide_x.matmul(&wide_weight.t());
        let is_target = targets.unsqueeze(-1).eq(Tensor::arange(DType::I32, classes));
        let sums = [logits.logsumexp(-1), is_target.select(&logits, 0.0).sum(-1), logits.sum(-1)];
        let terms = sums.iter().zip(&cotangents);
        let terms = terms.map(|(sum, of)| (sum * of.to_dtype(DType::F64)).sum_all());
        let loss = terms.reduce(|loss, term| loss + term).unwrap();
        let gradients = grad(&loss, &[&wide_x, &wide_weight]);
        let numbers = [&[sums[0].to_dtype(DType::F32)], &cotangents[..]].concat();
        let exact = [&sums[..], &gradients[..1], &gradients[1..]].map(values);
        Case { inputs: [x, weight, targets], numbers, exact }
    }

    /// The results of the kernel with this number, in which `kernel` is in place of its own.
    fn results(&self, kernels: &Kernels, number: usize, kernel: &Kernel) -> Vec<Tensor> {
        let Sized { blocks, .. } = *kernels.all()[number];
        let of = Sized { kernel: kernel.clone(), blocks };
        match number {
            0 => of.sums(&self.inputs, &SIZES),
            1 => vec![of.cotangent(&self.inputs, &self.numbers).narrow(1, 0, SIZES.tokens)],
            _ => {
                let of_groups = of.cotangent(&self.inputs, &self.numbers);
                vec![of_groups.narrow(1, 0, SIZES.classes).sum(0)]
            }
        }
    }

    /// How far each of these kernels is from the formula: the largest difference, as a part of the
    /// largest number. A NaN is infinitely far.
    fn differences(&self, kernels: &Kernels, number: usize, all: &[Mistake]) -> Vec<f64> {
        let exact = &self.exact[number];
        let results = all.iter().flat_map(|(_, kernel)| self.results(kernels, number, kernel));
        let results = values(&results.collect::<Vec<_>>());
        let difference = |(ours, exact): (&Literal, &Literal)| {
            let exact = exact.to_f64();
            let largest = exact.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
            let ours = ours.to_f64();
            let off = ours.iter().zip(&exact).map(|(a, b)| (a - b).abs() / largest);
            off.fold(0.0, |most: f64, off| if off.is_nan() { f64::INFINITY } else { most.max(off) })
        };
        let of_kernel =
            |results: &[Literal]| results.iter().zip(exact).map(difference).fold(0.0, f64::max);
        results.chunks(exact.len()).map(of_kernel).collect()
    }
}

impl Kernels {
    fn all(&self) -> [&Sized; 3] {
        [&self.forward, &self.of_tokens, &self.of_classes]
    }
}

fn values(tensors: &[Tensor]) -> Vec<Literal> {
    Runtime::global().unwrap().eval_many(tensors).unwrap()
}

/// Each input that is always its first block along an axis.
fn of_inputs(kernel: &Kernel) -> Vec<Mistake> {
    constant_maps(kernel, Role::Input)
}

fn constant_maps(kernel: &Kernel, role: Role) -> Vec<Mistake> {
    let mut all = Vec::new();
    for (number, array) in kernel.with_role(role) {
        let axes = (0..array.map.len()).filter(|&axis| array.map[axis].constant().is_none());
        all.extend(axes.map(|axis| {
            let mut mistake = kernel.clone();
            mistake.arrays[number].map[axis] = Index::from(0);
            (format!("the {role:?} {number} does not move along its axis {axis}"), mistake)
        }));
    }
    all
}

/// Comparisons that hold for more elements, selections of the other number, and numbers of classes
/// that begin again in each block.
fn of_masks(kernel: &Kernel) -> Vec<Mistake> {
    // Padding of the classes has rows of the weight's cotangent to itself, which are cut.
    let is_cut = |compare: Compare| compare == Compare::Less && kernel.name.contains("classes");
    let mut all = Vec::new();
    for (number, value) in kernel.values.iter().enumerate() {
        let wrong = match value.operation.clone() {
            Operation::Compare(compare, ..) if is_cut(compare) => continue,
            Operation::Compare(_, left, right) => {
                Operation::Compare(Compare::LessOrEqual, left, right)
            }
            Operation::Select { mask, on_true, on_false } => {
                Operation::Select { mask, on_true: on_false, on_false: on_true }
            }
            Operation::Splat(_) => Operation::Splat(Index::from(0)),
            _ => continue,
        };
        let mut mistake = kernel.clone();
        mistake.values[number].operation = wrong;
        all.push((format!("the value {number} was {:?}", value.operation), mistake));
    }
    all
}

/// Sums to which nothing was added before, or whose part so far is not scaled; numbers that are not
/// stored; first and last steps that are others.
fn of_sums(kernel: &Kernel) -> Vec<Mistake> {
    let loads_scratch = |value: usize| match kernel.values[value].operation {
        Operation::Load(array) => kernel.arrays[array].role == Role::Scratch,
        _ => false,
    };
    let is_kept = |value: usize| match kernel.values[value].operation {
        Operation::Binary(Binary::Mul, left, _) => loads_scratch(left),
        _ => loads_scratch(value),
    };
    let mut all = Vec::new();
    for (number, value) in kernel.values.iter().enumerate() {
        let other = match value.operation {
            Operation::Binary(Binary::Add, left, right) if is_kept(left) => right,
            Operation::Binary(Binary::Mul, left, _) if loads_scratch(left) => left,
            _ => continue,
        };
        let mut mistake = kernel.clone();
        // Each value is stored through its number, so this one becomes a sum with nothing.
        replace(&mut mistake.statements, number, other);
        for of in &mut mistake.values {
            if let Operation::Binary(_, left, _) = &mut of.operation
                && *left == number
            {
                *left = other;
            }
        }
        all.push((format!("only one part of {:?}", value.operation), mistake));
    }
    let stores = Statement::stored(&kernel.statements);
    for array in stores.into_iter().filter(|&array| kernel.arrays[array].role == Role::Scratch) {
        // The only sum of a kernel without its addition makes the result a constant.
        let is_only = kernel.with_role(Role::Scratch).count() == 1;
        let count = if is_only { 1 } else { stores_to(&kernel.statements, array) };
        all.extend((0..count).map(|number| without_store(kernel, array, number)));
    }
    for (number, statement) in kernel.statements.iter().enumerate() {
        let Statement::When { condition, body } = statement else { continue };
        let step = condition.right.constant().unwrap();
        let other = if step == 0 { 1 } else { step - 1 };
        let condition = Condition { right: Index::from(other), ..condition.clone() };
        let mut mistake = kernel.clone();
        mistake.statements[number] = Statement::When { condition, body: body.clone() };
        all.push((format!("step {other} in place of {step}"), mistake));
    }
    all
}

/// Stores another value in place of this one.
fn replace(statements: &mut [Statement], value: usize, other: usize) {
    for statement in statements {
        match statement {
            Statement::Store { value: stored, .. } if *stored == value => *stored = other,
            Statement::When { body, .. } => replace(body, value, other),
            _ => {}
        }
    }
}

/// The number of stores to an array.
fn stores_to(statements: &[Statement], of: usize) -> usize {
    let count = |statement: &Statement| match statement {
        Statement::Store { array, .. } => usize::from(*array == of),
        Statement::When { body, .. } => stores_to(body, of),
        Statement::Define(_) => 0,
    };
    statements.iter().map(count).sum()
}

/// The kernel without one of its stores to an array.
fn without_store(kernel: &Kernel, array: usize, number: usize) -> Mistake {
    fn remove(statements: &mut Vec<Statement>, of: usize, left: &mut usize) {
        statements.retain_mut(|statement| match statement {
            Statement::Define(_) => true,
            Statement::When { body, .. } => {
                remove(body, of, left);
                true
            }
            Statement::Store { array, .. } if *array != of => true,
            Statement::Store { .. } => {
                let is_this = *left == 0;
                *left = left.wrapping_sub(1);
                !is_this
            }
        });
    }
    let mut mistake = kernel.clone();
    let mut left = number;
    remove(&mut mistake.statements, array, &mut left);
    (format!("the store {number} to the array {array} is missing"), mistake)
}

/// Plants all mistakes of a kind in each kernel, and checks that one of the cases notices each.
/// Returns their number.
fn plant(mistakes: fn(&Kernel) -> Vec<Mistake>) -> usize {
    let kernels = LinearCrossEntropy::new().block_size(16).kernels(&SIZES).unwrap();
    let cases = [false, true].map(Case::new);
    let mut count = 0;
    for (number, of) in kernels.all().into_iter().enumerate() {
        let name = &of.kernel.name;
        let mut unnoticed = mistakes(&of.kernel);
        count += unnoticed.len();
        for case in &cases {
            let right = [("nothing".to_owned(), of.kernel.clone())];
            let all = [&right, &unnoticed[..]].concat();
            let differences = case.differences(&kernels, number, &all);
            assert!(differences[0] < TOLERANCE, "{name}: {}", differences[0]);
            let pairs = unnoticed.into_iter().zip(&differences[1..]);
            unnoticed = pairs.filter(|(_, off)| **off < TOLERANCE).map(|(m, _)| m).collect();
        }
        let names: Vec<&String> = unnoticed.iter().map(|(name, _)| name).collect();
        assert!(unnoticed.is_empty(), "{name}: the comparison does not notice {names:#?}");
    }
    count
}

/// One mistake of each kind.
fn first_of_each(kernel: &Kernel) -> Vec<Mistake> {
    [of_inputs, of_masks, of_sums].map(|of| of(kernel).swap_remove(0)).to_vec()
}

fn all_of_each(kernel: &Kernel) -> Vec<Mistake> {
    [of_inputs, of_masks, of_sums].map(|of| of(kernel)).concat()
}

#[test]
fn a_mistake_of_each_kind_is_noticed() {
    assert_eq!(plant(first_of_each), 9);
}

#[test]
#[ignore = "half a minute: cargo test -p fulmen-kernels --lib each_mistake -- --ignored"]
fn each_mistake_is_noticed() {
    assert_eq!(plant(all_of_each), 71);
}

#[test]
fn a_wrong_index_map_of_an_output_is_refused() {
    let kernels = LinearCrossEntropy::new().block_size(16).kernels(&SIZES).unwrap();
    let mistakes = kernels.all().map(|of| constant_maps(&of.kernel, Role::Output)).concat();
    assert_eq!(mistakes.len(), 10);
    for (name, kernel) in mistakes {
        assert!(grid::check(&kernel).is_err(), "{}: {name}", kernel.name);
    }
}
