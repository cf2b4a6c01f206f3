//! Random programs. A seed determines the program.

use std::iter::{repeat_n, repeat_with};

use fulmen_tensor::Tensor;

use super::operations::{ALONG, BINARY, Body, COMBINES, EQUATIONS, Op, REDUCTIONS, UNARY, Window};
use super::program::{Input, InputKind, Placement, Program, Split, Step, Weights};

/// The most elements of a value.
const LARGEST: usize = 1536;

const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

/// The number that SplitMix64 draws in this state.
pub(super) fn scrambled(state: u64) -> u64 {
    let x = state.wrapping_add(INCREMENT);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// SplitMix64.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 0x5851_f42d_4c95_7f2d)
    }

    fn next(&mut self) -> u64 {
        let x = scrambled(self.0);
        self.0 = self.0.wrapping_add(INCREMENT);
        x
    }

    /// A number below `n`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn one_of<T: Clone>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())].clone()
    }

    fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high + 1 - low)
    }
}

/// A program under construction, with its values.
struct Generator {
    random: Random,
    program: Program,
    /// The values of the inputs and of the steps, by number.
    inputs: Vec<Tensor>,
    steps: Vec<Tensor>,
}

/// A value while the number of inputs is not known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    Input(usize),
    Step(usize),
}

/// An operation with its operands.
struct Draft {
    op: Op,
    operands: Vec<Value>,
}

/// The program of this seed, of 5 to 40 steps. Short programs are more likely than long ones.
pub(super) fn program(seed: u64) -> Program {
    let mut random = Random::new(seed);
    let steps = random.between(5, 40).min(random.between(5, 40));
    let mesh = random.one_of(&[vec![8], vec![4, 2], vec![2, 2, 2]]);
    program_of(random, mesh, steps)
}

/// A program of 3 or 4 steps on this mesh, which compiles fast.
pub(super) fn small_program(seed: u64, mesh: &[usize]) -> Program {
    let mut random = Random::new(seed);
    let steps = random.between(3, 4);
    program_of(random, mesh.to_vec(), steps)
}

fn program_of(mut random: Random, mesh: Vec<usize>, steps: usize) -> Program {
    let program = Program {
        mesh,
        is_wide: random.chance(85),
        inputs: Vec::new(),
        steps: Vec::new(),
        terms: Vec::new(),
        returned: Vec::new(),
        splits_gradients: random.chance(50),
    };
    Generator { random, program, inputs: Vec::new(), steps: Vec::new() }.generate(steps)
}

/// The mesh axes, in any order, that split an axis of each size evenly.
fn split(random: &mut Random, mesh: &[usize], dims: &[usize]) -> Split {
    let mut split: Split = vec![Vec::new(); dims.len()];
    for (axis, &size) in mesh.iter().enumerate() {
        let fits = |&i: &usize| {
            let parts: usize = split[i].iter().map(|&axis| mesh[axis]).product();
            dims[i] > 0 && dims[i].is_multiple_of(parts * size)
        };
        let candidates: Vec<usize> = (0..dims.len()).filter(fits).collect();
        if !candidates.is_empty() && random.chance(65) {
            let chosen = random.one_of(&candidates);
            split[chosen].push(axis);
        }
    }
    split
}

impl Generator {
    fn generate(mut self, count: usize) -> Program {
        // The numbers of the operands, inputs and steps apart.
        let mut operands: Vec<Vec<Value>> = Vec::new();
        let rank = self.random.between(1, 4);
        let dims = self.dims(rank);
        self.numbers(&dims);
        for _ in 0..count * 4 {
            if self.steps.len() == count {
                break;
            }
            let inputs = self.program.inputs.len();
            let Some(draft) = self.draft() else { continue };
            let x: Vec<Tensor> = draft.operands.iter().map(|&v| self.value(v).clone()).collect();
            let y = draft.op.record(&x);
            let elements = y.shape().num_elements();
            if y.fault().is_some() || elements == 0 || elements > LARGEST || y.rank() > 5 {
                self.program.inputs.truncate(inputs);
                self.inputs.truncate(inputs);
                continue;
            }
            let placement = self.placement(&y);
            self.program.steps.push(Step { op: draft.op, operands: Vec::new(), placement });
            operands.push(draft.operands);
            self.steps.push(y);
        }
        let number = |v: &Value| match *v {
            Value::Input(i) => i,
            Value::Step(i) => self.program.inputs.len() + i,
        };
        let numbers: Vec<Vec<usize>> =
            operands.iter().map(|values| values.iter().map(number).collect()).collect();
        for (step, operands) in self.program.steps.iter_mut().zip(&numbers) {
            step.operands.clone_from(operands);
        }
        // The loss has each value that no step uses.
        let inputs = self.program.inputs.len();
        for id in inputs..inputs + self.steps.len() {
            if !numbers.iter().flatten().any(|&operand| operand == id) {
                let weights =
                    self.random.one_of(&[Weights::Ones, Weights::Constant, Weights::Computed]);
                self.program.terms.push((id, weights));
            }
            if self.random.chance(15) {
                self.program.returned.push(id);
            }
        }
        self.program
    }

    fn value(&self, v: Value) -> &Tensor {
        match v {
            Value::Input(i) => &self.inputs[i],
            Value::Step(i) => &self.steps[i],
        }
    }

    fn placement(&mut self, y: &Tensor) -> Placement {
        let dims = y.shape().to_vec();
        let split = split(&mut self.random, &self.program.mesh, &dims);
        match self.random.below(100) {
            0..=29 => Placement::Split(split),
            30..=34 => Placement::Gathered(split),
            _ => Placement::Anywhere,
        }
    }

    /// Sizes of which most can be split.
    fn dims(&mut self, rank: usize) -> Vec<usize> {
        loop {
            let dims: Vec<usize> =
                repeat_with(|| self.random.one_of(&[8, 8, 8, 16, 4, 4, 2, 2, 1, 3, 6, 5, 24]))
                    .take(rank)
                    .collect();
            if dims.iter().product::<usize>() <= LARGEST / 2 {
                return dims;
            }
        }
    }

    fn input(&mut self, dims: &[usize], kind: InputKind) -> Value {
        let split = if kind.is_parameter() {
            split(&mut self.random, &self.program.mesh, dims)
        } else {
            Vec::new()
        };
        self.program.inputs.push(Input { dims: dims.to_vec(), kind, split });
        let id = self.program.inputs.len() - 1;
        self.inputs.push(self.program.input(id));
        Value::Input(id)
    }

    fn numbers(&mut self, dims: &[usize]) -> Value {
        let constant = dims.iter().product::<usize>() <= 64 && self.random.chance(15);
        let kind = if constant { InputKind::ConstantNumbers } else { InputKind::Numbers };
        self.input(dims, kind)
    }

    fn indices(&mut self, dims: &[usize], below: usize) -> Value {
        let constant = self.random.chance(35);
        self.input(
            dims,
            if constant { InputKind::ConstantIndices(below) } else { InputKind::Indices(below) },
        )
    }

    /// A value of numbers with these dims: an earlier one, if there is one, or a new input.
    fn operand(&mut self, dims: &[usize]) -> Value {
        let fits = |v: &Value| {
            let y = self.value(*v);
            y.dtype().is_float() && y.shape().dims() == dims
        };
        let known: Vec<Value> = (0..self.inputs.len())
            .map(Value::Input)
            .chain((0..self.steps.len()).map(Value::Step))
            .filter(fits)
            .collect();
        if !known.is_empty() && self.random.chance(60) {
            return self.random.one_of(&known);
        }
        self.numbers(dims)
    }

    /// Mostly one of the last values.
    fn main_operand(&mut self) -> Value {
        let steps = self.steps.len();
        if steps == 0 || self.random.chance(10) {
            let numbers: Vec<usize> =
                (0..self.inputs.len()).filter(|&i| self.inputs[i].dtype().is_float()).collect();
            return Value::Input(self.random.one_of(&numbers));
        }
        let back = if self.random.chance(60) { 1 } else { self.random.between(1, steps) };
        Value::Step(steps - back)
    }

    fn axis(&mut self, rank: usize) -> usize {
        self.random.below(rank)
    }

    fn axes(&mut self, rank: usize) -> Vec<isize> {
        let mut axes: Vec<isize> = Vec::new();
        for axis in 0..rank {
            if self.random.chance(45) {
                axes.push(axis as isize);
            }
        }
        if axes.is_empty() { vec![self.axis(rank) as isize] } else { axes }
    }

    fn order(&mut self, rank: usize) -> Vec<isize> {
        let mut axes: Vec<isize> = (0..rank as isize).collect();
        for i in (1..rank).rev() {
            axes.swap(i, self.random.below(i + 1));
        }
        axes
    }

    /// An operation on a value of rank 1 or more, or on a new input of the rank that it needs.
    fn draft(&mut self) -> Option<Draft> {
        let main = self.main_operand();
        let dims = self.value(main).shape().to_vec();
        if dims.is_empty() {
            let to = self.dims(2);
            return Some(Draft { op: Op::BroadcastTo(to), operands: vec![main] });
        }
        match self.random.below(100) {
            0..=19 => self.elementwise(main, &dims),
            20..=31 => self.reduction(main, &dims),
            32..=53 => self.arrangement(main, &dims),
            54..=74 => self.indexing(main, &dims),
            75..=92 => self.product(main, &dims),
            _ => self.body(main, &dims),
        }
    }

    fn elementwise(&mut self, main: Value, dims: &[usize]) -> Option<Draft> {
        if self.random.chance(45) {
            return Some(Draft {
                op: Op::Unary(self.random.below(UNARY.len())),
                operands: vec![main],
            });
        }
        let mut other = dims.to_vec();
        if self.random.chance(50) {
            let first = self.random.below(dims.len());
            other.drain(..first);
            for size in &mut other {
                if self.random.chance(30) {
                    *size = 1;
                }
            }
        }
        let op = Op::Binary(self.random.below(BINARY.len()));
        let second = self.operand(&other);
        let operands = if self.random.chance(70) { vec![main, second] } else { vec![second, main] };
        Some(Draft { op, operands })
    }

    fn reduction(&mut self, main: Value, dims: &[usize]) -> Option<Draft> {
        let rank = dims.len();
        let axis = self.axis(rank) as isize;
        let op = match self.random.below(8) {
            0..=2 => Op::Reduce {
                how: self.random.below(REDUCTIONS.len()),
                axes: self.axes(rank),
                keep: self.random.chance(50),
            },
            3 | 4 => Op::Along { how: self.random.below(ALONG.len()), axis },
            5 => Op::Softmax { axis, log: self.random.chance(40) },
            6 => Op::Moments { axes: self.axes(rank) },
            _ => Op::ArgMax { axis },
        };
        Some(Draft { op, operands: vec![main] })
    }

    fn arrangement(&mut self, main: Value, dims: &[usize]) -> Option<Draft> {
        let rank = dims.len();
        let axis = self.axis(rank);
        let signed = axis as isize;
        let mut operands = vec![main];
        let op = match self.random.below(19) {
            0 | 1 => Op::Reshape(self.reshaped(dims)),
            2 => Op::Permute(self.order(rank)),
            3 => {
                let mut to = dims.to_vec();
                to.insert(0, self.random.one_of(&[8, 4, 2, 3]));
                Op::BroadcastTo(to)
            }
            4 => Op::Flip(self.axes(rank)),
            5 => Op::Roll { shift: self.random.between(1, 9) as isize - 4, axis: signed },
            6 | 7 => {
                let mut amounts = |low: i64, high: usize, percent| -> Vec<i64> {
                    let amount = |random: &mut Random| {
                        if random.chance(percent) { random.below(high) as i64 + low } else { 0 }
                    };
                    (0..rank).map(|_| amount(&mut self.random)).collect()
                };
                let low = amounts(-1, 4, 50);
                let high = amounts(-1, 4, 50);
                let interior = amounts(0, 2, 25).iter().map(|&n| n as usize).collect();
                Op::Pad { low, high, interior }
            }
            8 => {
                let amount = |size: usize, random: &mut Random| {
                    (random.below(size.min(3)) as i64, random.below(size.min(3)) as i64)
                };
                let amounts = dims.iter().map(|&n| amount(n, &mut self.random)).collect();
                Op::PadMode { how: self.random.below(3), amounts }
            }
            9 | 10 => {
                let start: Vec<usize> = dims.iter().map(|&n| self.random.below(n.min(4))).collect();
                let limit = dims
                    .iter()
                    .zip(&start)
                    .map(|(&n, &start)| n - self.random.below((n - start).min(4)))
                    .collect();
                let stride = dims.iter().map(|_| self.random.one_of(&[1, 1, 1, 2, 3])).collect();
                Op::Slice { start, limit, stride }
            }
            11 => Op::SplitAndSwap { axis: signed, first: self.random.between(1, dims[axis]) },
            12 => {
                let mut other = dims.to_vec();
                if self.random.chance(50) {
                    other[axis] = self.random.between(1, 8);
                }
                operands.push(self.operand(&other));
                Op::Concatenate { axis: signed }
            }
            13 => {
                operands.push(self.operand(dims));
                Op::Stack { axis: signed }
            }
            14 => Op::Tile(dims.iter().map(|_| self.random.one_of(&[1, 2, 1, 3])).collect()),
            15 => Op::RepeatInterleave { copies: self.random.between(2, 3), axis: signed },
            16 => Op::Index { axis: signed, index: self.random.below(dims[axis]) as isize },
            17 if rank >= 2 => Op::Diagonal { offset: self.random.below(5) as i64 - 2 },
            17 => Op::DiagEmbed { offset: self.random.below(5) as i64 - 2 },
            _ if rank >= 2 && self.random.chance(60) => Op::Triangle {
                diagonal: self.random.below(5) as i64 - 2,
                upper: self.random.chance(50),
            },
            _ => Op::Dropout(self.random.below(1000) as u64),
        };
        Some(Draft { op, operands })
    }

    /// Dims of as many elements: two neighbors joined, or one split, once or twice.
    fn reshaped(&mut self, dims: &[usize]) -> Vec<usize> {
        let mut to = dims.to_vec();
        for _ in 0..self.random.between(1, 2) {
            let axis = self.axis(to.len());
            if axis + 1 < to.len() && self.random.chance(50) {
                let next = to.remove(axis + 1);
                to[axis] *= next;
            } else {
                let factors: Vec<usize> =
                    [2, 4, 8, 3, 1].into_iter().filter(|&f| to[axis].is_multiple_of(f)).collect();
                let factor = self.random.one_of(&factors);
                to[axis] /= factor;
                to.insert(axis + self.random.below(2), factor);
            }
        }
        to
    }

    fn indexing(&mut self, main: Value, dims: &[usize]) -> Option<Draft> {
        let rank = dims.len();
        let axis = self.axis(rank);
        let signed = axis as isize;
        let count = self.random.one_of(&[1, 1, 2, 3, 8, 8, 16]);
        let combine = self.random.below(COMBINES.len());
        let sets = combine == 1;
        let mut operands = vec![main];
        let op = match self.random.below(14) {
            0 | 1 => {
                let shape = self.random.one_of(&[vec![count], vec![], vec![2, 8], vec![4, count]]);
                operands.push(self.indices(&shape, dims[axis]));
                Op::Take { axis: signed }
            }
            2 => {
                let mut shape = dims.to_vec();
                shape[axis] = count;
                operands.push(self.indices(&shape, dims[axis]));
                if self.random.chance(50) {
                    Op::Gather { axis: signed }
                } else {
                    Op::TakeAlong { axis: signed }
                }
            }
            3 => {
                let k = self.random.between(1, rank.min(2));
                let below = dims[..k].iter().copied().min()?;
                let shape = self.random.one_of(&[vec![count, k], vec![k], vec![2, 4, k]]);
                operands.push(self.indices(&shape, below));
                Op::GatherNd
            }
            4 => {
                operands.push(self.indices(&dims[..rank - 1], dims[rank - 1]));
                Op::OneHot { classes: dims[rank - 1] }
            }
            5 | 6 => {
                let count = if sets { count.min(dims[axis]) } else { count };
                let indices = self.written_indices(&[count], dims[axis], 0, sets);
                let mut shape = dims.to_vec();
                shape[axis] = count;
                operands.push(indices);
                operands.push(self.operand(&shape));
                Op::WriteAlong { axis: signed, combine }
            }
            7 | 8 => {
                let count = if sets { count.min(dims[axis]) } else { count };
                let mut shape = dims.to_vec();
                shape[axis] = count;
                operands.push(self.written_indices(&shape, dims[axis], axis, sets));
                operands.push(self.operand(&shape));
                Op::WriteElements { axis: signed, combine }
            }
            9 => {
                let k = if sets { 1 } else { self.random.between(1, rank.min(2)) };
                let below = dims[..k].iter().copied().min()?;
                let count = if sets { count.min(below) } else { count };
                operands.push(self.written_indices(&[count, k], below, 0, sets));
                operands.push(self.operand(&[&[count], &dims[k..]].concat()));
                Op::ScatterNd { combine }
            }
            10 => {
                let sizes: Vec<usize> = dims
                    .iter()
                    .map(|&n| if self.random.chance(50) { n } else { n.div_ceil(2) })
                    .collect();
                operands.extend(dims.iter().map(|&n| self.indices(&[], n)).collect::<Vec<_>>());
                Op::DynamicSlice(sizes)
            }
            11 => {
                let sizes: Vec<usize> = dims
                    .iter()
                    .map(|&n| if self.random.chance(50) { n } else { n.div_ceil(2) })
                    .collect();
                operands.push(self.operand(&sizes));
                operands.extend(dims.iter().map(|&n| self.indices(&[], n)).collect::<Vec<_>>());
                Op::DynamicUpdateSlice
            }
            12 => {
                let k = self.random.between(1, dims[axis]);
                if self.random.chance(50) {
                    Op::TopK { k, axis: signed, largest: self.random.chance(50) }
                } else {
                    Op::Kth { k, axis: signed }
                }
            }
            _ if self.random.chance(50) => {
                operands.push(self.operand(dims));
                Op::SortTogether { axis: signed }
            }
            _ => Op::Sort { axis: signed, descending: self.random.chance(50) },
        };
        Some(Draft { op, operands })
    }

    /// Indices for updates; different ones, if only one update can be written.
    fn written_indices(&mut self, dims: &[usize], below: usize, axis: usize, sets: bool) -> Value {
        if sets {
            self.input(dims, InputKind::DifferentIndices { below, axis })
        } else {
            self.indices(dims, below)
        }
    }

    fn product(&mut self, main: Value, dims: &[usize]) -> Option<Draft> {
        match self.random.below(12) {
            0..=2 => self.matrix_product(main, dims),
            3 | 4 => self.equation(),
            5..=8 => self.windows(main, dims),
            9 => {
                let axis = self.axis(dims.len()) as isize;
                let op =
                    if self.random.chance(50) { Op::Fft(vec![axis]) } else { Op::Rfft(vec![axis]) };
                Some(Draft { op, operands: vec![main] })
            }
            10 => {
                let n = self.random.one_of(&[2, 4, 8]);
                let batch = if self.random.chance(50) { vec![8, n, n] } else { vec![n, n] };
                let x = self.operand(&batch);
                Some(Draft { op: Op::Cholesky, operands: vec![x] })
            }
            _ => {
                let rank = dims.len();
                let right = self.random.chance(40);
                if rank < 2 {
                    return None;
                }
                let n = if right { dims[rank - 1] } else { dims[rank - 2] };
                let matrix = self.operand(&[&dims[..rank - 2], &[n, n]].concat());
                Some(Draft { op: Op::TriangularSolve { right }, operands: vec![matrix, main] })
            }
        }
    }

    fn matrix_product(&mut self, main: Value, dims: &[usize]) -> Option<Draft> {
        let rank = dims.len();
        if self.random.chance(40) {
            let columns = self.random.one_of(&[8, 4, 16, 3]);
            let inner = dims[rank - 1];
            let shape = if rank >= 3 && self.random.chance(50) {
                [&dims[..rank - 2], &[inner, columns]].concat()
            } else {
                vec![inner, columns]
            };
            let other = self.operand(&shape);
            return Some(Draft { op: Op::Matmul, operands: vec![main, other] });
        }
        let mut order = self.order(rank);
        let contracted = self.random.between(1, rank.min(2));
        let batched = self.random.below(rank - contracted + 1).min(2);
        let contracting: Vec<isize> = order.drain(..contracted).collect();
        let batch: Vec<isize> = order.drain(..batched).collect();
        // The other operand's axes: batch, contracted and free, in some order.
        let free = self.random.below(2);
        let count = batched + contracted + free;
        let places = self.order(count);
        let mut shape = vec![self.random.one_of(&[8, 4, 2, 3]); count];
        for (&axis, &place) in batch.iter().chain(&contracting).zip(&places) {
            shape[place as usize] = dims[axis as usize];
        }
        let other = self.operand(&shape);
        let op = Op::DotGeneral {
            batch: [batch, places[..batched].to_vec()],
            contracting: [contracting, places[batched..batched + contracted].to_vec()],
        };
        Some(Draft { op, operands: vec![main, other] })
    }

    fn equation(&mut self) -> Option<Draft> {
        let how = self.random.below(EQUATIONS.len());
        let (equation, _) = EQUATIONS[how];
        let letters: Vec<char> = equation.chars().filter(|c| c.is_alphabetic()).collect();
        let sizes: Vec<(char, usize)> =
            letters.iter().map(|&c| (c, self.random.one_of(&[8, 4, 2, 8, 3]))).collect();
        let size = |c: char| sizes.iter().find(|s| s.0 == c).map_or(1, |s| s.1);
        let (inputs, _) = equation.split_once("->")?;
        let shapes: Vec<Vec<usize>> =
            inputs.split(',').map(|names| names.chars().map(size).collect()).collect();
        let operands = shapes.iter().map(|shape| self.operand(shape)).collect();
        Some(Draft { op: Op::Einsum(how), operands })
    }

    fn window(&mut self, spatial: usize, largest: usize) -> Window {
        let random = &mut self.random;
        let size: Vec<usize> = (0..spatial).map(|_| random.between(1, largest)).collect();
        let stride = (0..spatial).map(|_| random.one_of(&[1, 1, 2, 3])).collect();
        let padding = size.iter().map(|&n| random.below(n.div_ceil(2) + 1) as i64).collect();
        let dilation = (0..spatial).map(|_| random.one_of(&[1, 1, 1, 2])).collect();
        Window { size, stride, padding, dilation, groups: 1 }
    }

    fn windows(&mut self, main: Value, dims: &[usize]) -> Option<Draft> {
        let fits = (3..=4).contains(&dims.len());
        let (x, dims) = if fits {
            (main, dims.to_vec())
        } else {
            let spatial = self.random.between(1, 2);
            let sizes = [self.random.one_of(&[2, 4, 8]), self.random.one_of(&[2, 4, 8])];
            let maps = [self.random.one_of(&[4, 8, 16]), self.random.one_of(&[4, 8, 5])];
            let dims = [&sizes[..], &maps[..spatial]].concat();
            (self.operand(&dims), dims)
        };
        let spatial = dims.len() - 2;
        let mut operands = vec![x];
        let op = match self.random.below(8) {
            0..=3 => {
                let mut window = self.window(spatial, 3);
                let out = self.random.one_of(&[8, 4, 2]);
                let transposed = self.random.chance(30);
                if dims[1].is_multiple_of(2) && self.random.chance(25) {
                    window.groups = self.random.one_of(&[2, dims[1]]);
                }
                let groups = window.groups;
                let out = out.max(groups);
                let shape = if transposed {
                    [&[dims[1], out.div_ceil(groups)], &window.size[..]].concat()
                } else {
                    [&[out.next_multiple_of(groups), dims[1] / groups], &window.size[..]].concat()
                };
                operands.push(self.operand(&shape));
                if transposed { Op::ConvTranspose(window) } else { Op::Convolution(window) }
            }
            4 => {
                let window = self.window(spatial, 3);
                if self.random.chance(50) {
                    Op::MaxPool(window)
                } else {
                    Op::MaxPoolPositions(window)
                }
            }
            5 => Op::AvgPool(self.window(spatial, 3)),
            6 => {
                let sizes =
                    dims[2..].iter().map(|&n| self.random.between(1, n)).collect::<Vec<_>>();
                if self.random.chance(50) {
                    Op::AdaptiveAvgPool(sizes)
                } else {
                    Op::AdaptiveMaxPool(sizes)
                }
            }
            _ => Op::Interpolate {
                sizes: dims[2..].iter().map(|_| self.random.one_of(&[4, 8, 3, 16])).collect(),
                linear: self.random.chance(60),
            },
        };
        Some(Draft { op, operands })
    }

    /// An operation with a body of a few simple steps.
    fn body(&mut self, main: Value, dims: &[usize]) -> Option<Draft> {
        let kind = self.random.below(4);
        let mut operands = vec![main];
        let mut inner: Vec<Tensor> = Vec::new();
        if kind == 3 {
            let length = self.random.one_of(&[2, 3, 4, 8]);
            operands.push(self.operand(&[&[length], dims].concat()));
            inner.extend(repeat_n(self.value(main).clone(), 2));
        } else {
            inner.push(self.value(main).clone());
        }
        let others = self.random.below(3);
        let captured = if kind == 3 { others } else { self.random.below(others + 1) };
        for _ in 0..others {
            let with = if self.random.chance(50) {
                dims.to_vec()
            } else {
                vec![*dims.last()?, self.random.one_of(&[8, 4, 2])]
            };
            let v = self.operand(&with);
            operands.push(v);
            inner.push(self.value(v).clone());
        }
        let mut steps = Vec::new();
        for _ in 0..self.random.between(1, 4) {
            let (op, operands) = self.inner_operation(&inner);
            let x: Vec<Tensor> = operands.iter().map(|&id| inner[id].clone()).collect();
            let y = op.record(&x);
            if y.fault().is_some() || y.shape().num_elements() > LARGEST {
                continue;
            }
            let placement = self.placement(&y);
            steps.push(Step { op, operands, placement });
            inner.push(y);
        }
        if steps.is_empty() {
            return None;
        }
        let body = Body { steps, captured };
        let op = match kind {
            0 => Op::Checkpoint(body),
            1 => Op::Call(body),
            2 => Op::Cond(body),
            _ => Op::Scan { body, reverse: self.random.chance(50) },
        };
        Some(Draft { op, operands })
    }

    fn inner_operation(&mut self, inner: &[Tensor]) -> (Op, Vec<usize>) {
        let last = inner.len() - 1;
        let rank = inner[last].rank();
        let other = self.random.below(inner.len());
        match self.random.below(8) {
            0 | 1 => (Op::Unary(self.random.below(UNARY.len())), vec![last]),
            2 | 3 => (Op::Binary(self.random.below(BINARY.len())), vec![last, other]),
            4 | 5 => (Op::Matmul, vec![last, other]),
            6 => (Op::Softmax { axis: -1, log: self.random.chance(30) }, vec![last]),
            _ => {
                let axes = if rank == 0 { Vec::new() } else { self.axes(rank) };
                (Op::Moments { axes }, vec![last])
            }
        }
    }
}
