//! [`Program`]: a random program as data, so that it can be sent to another process and made
//! smaller. [`Program::trace`] records it.

use fulmen_tensor::{DType, Function, Literal, Mesh, Sharding, Tensor, TensorType, grad};
use serde::{Deserialize, Serialize};

use super::generate::scrambled;
use super::operations::Op;

/// The mesh axes that each axis of a value is split over, by index.
pub(super) type Split = Vec<Vec<usize>>;

/// A parameter or a constant of a program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Input {
    pub(super) dims: Vec<usize>,
    pub(super) kind: InputKind,
    pub(super) split: Split,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum InputKind {
    /// Numbers between −1 and 1, as a parameter. The program has its gradient.
    Numbers,
    /// Numbers between −1 and 1, in the text of the program.
    ConstantNumbers,
    /// Indices from 0 to a little more than this, as a parameter.
    Indices(usize),
    /// Indices from 0 to a little more than this, in the text of the program.
    ConstantIndices(usize),
    /// Indices below this as a parameter, different along an axis. There are at most as many.
    DifferentIndices { below: usize, axis: usize },
}

impl InputKind {
    pub(super) fn is_parameter(self) -> bool {
        !matches!(self, InputKind::ConstantNumbers | InputKind::ConstantIndices(_))
    }

    pub(super) fn is_numbers(self) -> bool {
        matches!(self, InputKind::Numbers | InputKind::ConstantNumbers)
    }
}

/// How the result of a step is placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Placement {
    Anywhere,
    /// With `with_sharding`.
    Split(Split),
    /// With `all_gather`.
    Gathered(Split),
}

/// One operation on earlier values. Values are numbered: first the inputs, then the steps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Step {
    pub(super) op: Op,
    pub(super) operands: Vec<usize>,
    pub(super) placement: Placement,
}

/// How the elements of a value are weighed in the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Weights {
    Ones,
    /// In the text of the program, if there are few.
    Constant,
    /// Computed by the program.
    Computed,
}

/// The loss is a weighted sum of values. The results are the loss, the gradient of each parameter
/// of numbers, and some values.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Program {
    /// The sizes of the mesh's axes, which are named `a`, `b` and `c`.
    pub(super) mesh: Vec<usize>,
    /// Whether numbers are f64, so that rounding hides nothing, or f32.
    pub(super) is_wide: bool,
    pub(super) inputs: Vec<Input>,
    pub(super) steps: Vec<Step>,
    pub(super) terms: Vec<(usize, Weights)>,
    pub(super) returned: Vec<usize>,
    /// Whether each gradient is split like its parameter, or replicated.
    pub(super) splits_gradients: bool,
}

const AXES: [&str; 3] = ["a", "b", "c"];

pub(super) fn sharding(split: &Split) -> Sharding {
    Sharding::over(split.iter().map(|axes| axes.iter().map(|&axis| AXES[axis]).collect()))
}

/// A number between −1 and 1 that is different for each index. The differences of numbers have no
/// pattern: softmax and normalization would turn it into ties, which rounding decides.
fn number(seed: usize, i: usize) -> f64 {
    let bits = scrambled(((seed as u64) << 32) + i as u64) >> 11;
    let x = bits as f64 / (1u64 << 53) as f64;
    x.mul_add(1.9, -0.95)
}

fn index(seed: usize, i: usize, below: usize) -> i32 {
    // One in about nine is out of range.
    let range = below + below.div_ceil(8);
    ((i * 7 + seed * 5 + i * i / 3) % range) as i32
}

impl Program {
    pub(super) fn mesh(&self) -> Mesh {
        Mesh::new(AXES.into_iter().zip(self.mesh.iter().copied())).unwrap()
    }

    pub(super) fn dtype(&self) -> DType {
        if self.is_wide { DType::F64 } else { DType::F32 }
    }

    fn input_type(&self, input: &Input) -> TensorType {
        let dtype = if input.kind.is_numbers() { self.dtype() } else { DType::I32 };
        TensorType::new(dtype, input.dims.as_slice())
    }

    fn numbers_of(&self, id: usize) -> Vec<f64> {
        let input = &self.inputs[id];
        let count: usize = input.dims.iter().product();
        let elements = 0..count;
        match input.kind {
            InputKind::Numbers | InputKind::ConstantNumbers => {
                elements.map(|i| number(id + 1, i)).collect()
            }
            InputKind::Indices(below) | InputKind::ConstantIndices(below) => {
                elements.map(|i| index(id, i, below).into()).collect()
            }
            InputKind::DifferentIndices { below, axis } => {
                // No factor in common with the number of indices.
                let step = if below.is_multiple_of(5) { 7 } else { 5 };
                let inner = input.dims[axis + 1..].iter().product::<usize>();
                let size = input.dims[axis];
                let index = |i: usize| i / inner % size * step + i % inner + id;
                elements.map(|i| (index(i) % below) as f64).collect()
            }
        }
    }

    /// The value of an input.
    pub(super) fn literal(&self, id: usize) -> Literal {
        let ty = self.input_type(&self.inputs[id]);
        let numbers = self.numbers_of(id);
        if ty.dtype.is_float() {
            return Literal::from_slice(&numbers, ty.shape).unwrap().to_dtype(ty.dtype).unwrap();
        }
        let indices: Vec<i32> = numbers.iter().map(|&x| x as i32).collect();
        Literal::from_slice(&indices, ty.shape).unwrap()
    }

    /// The inputs as tensors; parameters as placeholders.
    pub(super) fn input(&self, id: usize) -> Tensor {
        let input = &self.inputs[id];
        if input.kind.is_parameter() {
            Tensor::placeholder(format!("v{id}"), self.input_type(input))
        } else {
            self.literal(id).to_tensor()
        }
    }

    /// The numbers of the inputs that are parameters.
    pub(super) fn parameters(&self) -> Vec<usize> {
        (0..self.inputs.len()).filter(|&id| self.inputs[id].kind.is_parameter()).collect()
    }

    fn loss(&self, values: &[Tensor]) -> Tensor {
        let dtype = self.dtype();
        let mut loss = Tensor::zeros(dtype, []);
        for &(id, weights) in &self.terms {
            let y = &values[id];
            let count = y.shape().num_elements();
            let weights = match weights {
                Weights::Ones => Tensor::ones(dtype, y.shape()),
                Weights::Constant if count <= 128 => {
                    let numbers: Vec<f64> = (0..count).map(|i| number(id, i)).collect();
                    Tensor::from_slice(&numbers, y.shape()).to_dtype(dtype)
                }
                _ => (Tensor::arange(dtype, count) * 0.37).cos().reshape(y.shape()),
            };
            loss = loss + (y * weights).sum_all();
        }
        loss
    }

    /// Records the program. The results are the loss, the gradients, and the returned values.
    pub(super) fn trace(&self) -> Function {
        let mut values: Vec<Tensor> = (0..self.inputs.len()).map(|id| self.input(id)).collect();
        for step in &self.steps {
            values.push(step.record(&values));
        }
        let parameters = self.parameters();
        let numbers: Vec<usize> = parameters
            .iter()
            .copied()
            .filter(|&id| self.inputs[id].kind == InputKind::Numbers)
            .collect();
        let loss = self.loss(&values);
        let wrt: Vec<&Tensor> = numbers.iter().map(|&id| &values[id]).collect();
        let mut results = vec![loss.clone()];
        results.extend(grad(&loss, &wrt));
        results.extend(self.returned.iter().map(|&id| values[id].clone()));
        let placeholders = parameters.iter().map(|&id| values[id].clone()).collect();
        let mut function = Function::new("program", placeholders, results);
        for (i, &id) in parameters.iter().enumerate() {
            function = function.shard_parameter(i, sharding(&self.inputs[id].split));
        }
        if self.splits_gradients {
            for (i, &id) in numbers.iter().enumerate() {
                function = function.shard_result(i + 1, sharding(&self.inputs[id].split));
            }
        }
        function
    }

    /// The names of the results.
    pub(super) fn result_names(&self) -> Vec<String> {
        let mut names = vec!["the loss".to_owned()];
        for (id, input) in self.inputs.iter().enumerate() {
            if input.kind == InputKind::Numbers {
                names.push(format!("the gradient of v{id}"));
            }
        }
        names.extend(self.returned.iter().map(|id| format!("v{id}")));
        names
    }
}

impl Step {
    /// Records the step after `values`.
    pub(super) fn record(&self, values: &[Tensor]) -> Tensor {
        let operands: Vec<Tensor> = self.operands.iter().map(|&id| values[id].clone()).collect();
        let y = self.op.record(&operands);
        match &self.placement {
            Placement::Anywhere => y,
            Placement::Split(split) => y.with_sharding(&sharding(split)),
            Placement::Gathered(split) => y.all_gather(&sharding(split)),
        }
    }
}

fn spell(split: &Split) -> String {
    if split.iter().all(Vec::is_empty) { String::new() } else { format!(" {}", sharding(split)) }
}

/// One line for each value, for people.
impl std::fmt::Display for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "mesh {}, {}", self.mesh(), self.dtype())?;
        for (id, input) in self.inputs.iter().enumerate() {
            writeln!(f, "  v{id} = {:?} {:?}{}", input.kind, input.dims, spell(&input.split))?;
        }
        let mut values: Vec<Tensor> = (0..self.inputs.len()).map(|id| self.input(id)).collect();
        for step in &self.steps {
            let id = values.len();
            let y = step.record(&values);
            let operands: Vec<String> = step.operands.iter().map(|id| format!("v{id}")).collect();
            let placement = match &step.placement {
                Placement::Anywhere => String::new(),
                Placement::Split(split) => format!(" with_sharding{}", spell(split)),
                Placement::Gathered(split) => format!(" all_gather{}", spell(split)),
            };
            writeln!(
                f,
                "  v{id} = {:?}({}) : {}{placement}",
                step.op,
                operands.join(", "),
                y.shape()
            )?;
            values.push(y);
        }
        writeln!(f, "  loss of {:?}, returned {:?}", self.terms, self.returned)?;
        writeln!(f, "  gradients {}", if self.splits_gradients { "split" } else { "replicated" })
    }
}
