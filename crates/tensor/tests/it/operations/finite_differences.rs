//! Compares gradients with central differences, `(f(x + h) − f(x − h)) / 2h`, for the cases of
//! the catalogue in f64.
//!
//! All cases of an operation form one program with one parameter, so that one call moves one number
//! of each case.

use fulmen_catalogue::{Case, Row, family};
use fulmen_tensor::{Argument, DType, Function, Literal, Runtime, Tensor, TensorType, grad};

/// The number of elements of an input that are moved, evenly spaced.
const MOVED: usize = 24;

type Outputs<'a> = dyn Fn(&[Tensor]) -> Vec<Tensor> + 'a;

/// A function of some inputs at a point.
pub(crate) struct Point<'a> {
    pub(crate) name: &'a str,
    pub(crate) inputs: Vec<Input>,
    pub(crate) function: Box<Outputs<'a>>,
}

/// The input of a function at a point.
pub(crate) enum Input {
    /// A differentiated input. A complex number is two floats.
    Floats {
        shape: Vec<usize>,
        values: Vec<f64>,
        complex: bool,
    },
    Constant(Literal),
}

impl Input {
    fn values(&self) -> &[f64] {
        match self {
            Input::Floats { values, .. } => values,
            Input::Constant(_) => &[],
        }
    }
}

impl Point<'_> {
    fn numbers(&self) -> impl Iterator<Item = f64> {
        self.inputs.iter().flat_map(|input| input.values().iter().copied())
    }

    /// The indices of the numbers of this point that are moved.
    fn moved(&self) -> Vec<usize> {
        let mut start = 0;
        let mut places = Vec::new();
        for input in &self.inputs {
            let n = input.values().len();
            let taken = n.min(MOVED);
            places.extend((0..taken).map(|i| start + i * n / taken));
            start += n;
        }
        places
    }

    /// A weighted sum of all outputs, and its gradient with respect to all numbers, from a piece of
    /// the parameter.
    fn record(&self, numbers: &Tensor) -> (Tensor, Tensor) {
        let mut start = 0;
        let mut x = Vec::new();
        let mut wrt = Vec::new();
        for input in &self.inputs {
            match input {
                Input::Floats { shape, values, complex } => {
                    let part = numbers.narrow(0, start, values.len());
                    start += values.len();
                    wrt.push(part.clone());
                    x.push(if *complex {
                        let pairs = part.reshape([values.len() / 2, 2]);
                        let parts = [0, 1].map(|i| pairs.narrow(1, i, 1).reshape(shape.as_slice()));
                        Tensor::complex(&parts[0], &parts[1])
                    } else {
                        part.reshape(shape.as_slice())
                    });
                }
                Input::Constant(literal) => x.push(literal.to_tensor()),
            }
        }
        let mut value = Tensor::scalar(0.0f64);
        let outputs = (self.function)(&x);
        let parts = outputs.iter().flat_map(|y| match y.dtype() {
            DType::C128 => vec![y.real(), y.imag()],
            dtype if dtype.is_float() => vec![y.clone()],
            _ => Vec::new(),
        });
        for (i, y) in parts.enumerate() {
            let n = y.shape().num_elements();
            let weights =
                (Tensor::arange(DType::F64, n) * 0.37 + (0.5 + i as f64)).sin().reshape(y.shape());
            // A NaN by design, for example from an index out of range, would hide everything else.
            let known = y.is_finite().select(&y, &y.zeros_like());
            value = value + (known * weights).sum_all();
        }
        assert!(value.fault().is_none(), "{}: {value:?}", self.name);
        let gradients = grad(&value, &wrt);
        let flat: Vec<Tensor> =
            gradients.iter().map(|g| g.reshape([g.shape().num_elements()])).collect();
        let gradient = Tensor::concatenate(&flat, 0);
        assert!(gradient.fault().is_none(), "{}: {gradient:?}", self.name);
        (value, gradient)
    }
}

/// The differences that the gradients at these points have from the expected values.
pub(crate) fn run(name: &str, points: &[Point<'_>]) -> Vec<String> {
    let numbers: Vec<f64> = points.iter().flat_map(Point::numbers).collect();
    let ty = TensorType::new(DType::F64, [numbers.len()]);
    let function = Function::trace(name, ty, |x| {
        let mut start = 0;
        let mut values = Vec::new();
        let mut gradients = Vec::new();
        for point in points {
            let n = point.numbers().count();
            let (value, gradient) = point.record(&x.narrow(0, start, n));
            start += n;
            values.push(value);
            gradients.push(gradient);
        }
        let values = Tensor::stack(&values, 0);
        vec![values, Tensor::concatenate(&gradients, 0)]
    });
    let runtime = Runtime::global().unwrap();
    let compiled = runtime.compile(&function).unwrap_or_else(|e| panic!("{name}: {e}"));
    let call = |numbers: &[f64], result: usize| -> Vec<f64> {
        let argument =
            runtime.to_device(&Literal::from_slice(numbers, [numbers.len()]).unwrap()).unwrap();
        let outputs = compiled.call(vec![Argument::Borrow(&argument)]).unwrap();
        runtime.read(&[&outputs.arrays[result]]).unwrap().wait().unwrap()[0].to_f64()
    };
    let at_point = call(&numbers, 0);
    let gradients = call(&numbers, 1);

    let mut starts = Vec::new();
    let mut start = 0;
    for point in points {
        starts.push(start);
        start += point.numbers().count();
    }
    let places: Vec<Vec<usize>> = points.iter().map(Point::moved).collect();
    let mut wrong = Vec::new();
    for turn in 0..places.iter().map(Vec::len).max().unwrap_or(0) {
        let moved: Vec<Option<usize>> = places
            .iter()
            .zip(&starts)
            .map(|(places, start)| Some(start + places.get(turn)?))
            .collect();
        let step = |place: usize| 1e-5 * numbers[place].abs().max(1.0);
        let shifted = |sign: f64| {
            let mut shifted = numbers.clone();
            for &place in moved.iter().flatten() {
                shifted[place] += sign * step(place);
            }
            call(&shifted, 0)
        };
        let above = shifted(1.0);
        let below = shifted(-1.0);
        for (i, point) in points.iter().enumerate() {
            let Some(place) = moved[i] else { continue };
            let difference = (above[i] - below[i]) / (2.0 * step(place));
            let rounding = 8.0 * f64::EPSILON * at_point[i].abs() / step(place);
            let gradient = gradients[place];
            let tolerance = 1e-6 * (1.0 + difference.abs()) + rounding;
            let close = (gradient - difference).abs() < tolerance;
            if !close {
                let number = place - starts[i];
                let x = numbers[place];
                wrong.push(format!(
                    "{}: number {number}, {x}: gradient {gradient}, difference {difference}",
                    point.name
                ));
            }
        }
    }
    wrong
}

/// The case with its floats as f64. `None` if it is not about smooth points.
fn point<'a>(row: &'a Row, case: &'a Case) -> Option<Point<'a>> {
    let finite = || {
        case.inputs
            .iter()
            .filter(|a| a.ty().dtype.is_inexact())
            .flat_map(|a| a.values())
            .all(f64::is_finite)
    };
    if case.kink.is_some() || !case.has_gradients() || !finite() {
        return None;
    }
    let inputs: Vec<Input> = case
        .inputs
        .iter()
        .map(|array| match array.ty() {
            ty if ty.dtype.is_inexact() => Input::Floats {
                shape: ty.shape.to_vec(),
                values: array.values(),
                complex: ty.dtype.is_complex(),
            },
            _ => Input::Constant(array.literal()),
        })
        .collect();
    Some(Point { name: &case.name, inputs, function: Box::new(|x| row.record(x, &case.attrs)) })
}

/// Checks the gradients of every operation of the family that has gradients.
pub(crate) fn check(name: &str) {
    let family = family(name).unwrap();
    let cases = family.cases();
    let mut wrong = Vec::new();
    for row in &family.rows {
        let points: Vec<Point<'_>> = cases
            .iter()
            .filter(|case| case.op == row.op)
            .filter_map(|case| point(row, case))
            .filter(|point| point.numbers().next().is_some())
            .collect();
        match row.no_differences {
            Some(reason) => {
                assert!(!points.is_empty(), "{} has no gradients, no need to say: {reason}", row.op)
            }
            None if points.is_empty() => {}
            None => wrong.extend(run(row.op, &points)),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
