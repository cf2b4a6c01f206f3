//! Values that are read when devices need them: each block once, and only those of the devices.

use std::sync::{Arc, Mutex};

use fulmen_tensor::{
    Accelerator, Block, DType, Devices, Error, Function, Literal, Mesh, Result, Runtime, Sharding,
    StoredValue, Tensor, TensorType, Variable, grad,
};

/// A matrix of bf16 numbers, which records what is read.
struct Matrix {
    value: Literal,
    reads: Mutex<Vec<Block>>,
    fails: bool,
}

impl StoredValue for Matrix {
    fn read(&self, block: &Block) -> Result<Vec<u8>> {
        if self.fails {
            return Err(Error::usage("matrix.bin: it was changed"));
        }
        self.reads.lock().unwrap().push(block.clone());
        Ok(block.elements_of(self.value.ty(), self.value.bytes())?.into_owned())
    }

    fn fingerprint(&self) -> Result<String> {
        Ok("a matrix".into())
    }
}

fn matrix(fails: bool) -> Arc<Matrix> {
    let numbers: Vec<f32> = (0..16 * 24).map(|i| (i as f32 * 0.37).sin()).collect();
    let value = Literal::from_slice(&numbers, [16, 24]).unwrap().to_dtype(DType::Bf16).unwrap();
    Arc::new(Matrix { value, reads: Mutex::default(), fails })
}

fn stored(matrix: &Arc<Matrix>) -> Tensor {
    Tensor::from_stored(matrix.value.ty().clone(), matrix.clone())
}

fn runtime() -> Runtime {
    let mesh = Mesh::new([("data", 4), ("model", 2)]).unwrap();
    Runtime::open(Accelerator::Cpu, &Devices::from(8)).unwrap().with_mesh(&mesh).unwrap()
}

#[test]
fn each_block_of_the_devices_is_read_once() {
    let runtime = runtime();
    for (sharding, blocks, size) in [
        (Sharding::new([Some("data"), Some("model")]), 8, [4, 12]),
        (Sharding::new([None, Some("model")]), 2, [16, 12]),
        (Sharding::over([vec!["model", "data"]]), 8, [2, 24]),
        (Sharding::replicated(), 1, [16, 24]),
    ] {
        let matrix = matrix(false);
        let tensor = stored(&matrix).to_dtype_on_host(DType::F32);
        let array = runtime
            .parts_to_devices(tensor.ty(), &sharding, |block| {
                Ok(tensor.host_block(block)?.unwrap())
            })
            .unwrap();
        let read = runtime.read(&[&array]).unwrap().wait().unwrap();
        let expected = matrix.value.to_tensor().to_dtype(DType::F32);
        assert_eq!(read[0].bytes(), runtime.eval(&expected).unwrap().bytes(), "{sharding}");
        let reads = matrix.reads.lock().unwrap();
        assert_eq!(reads.len(), blocks, "{sharding}: {reads:?}");
        assert!(reads.iter().all(|block| block.size == size), "{sharding}: {reads:?}");
    }
}

#[test]
fn a_stored_value_is_a_tensor_like_others() {
    let matrix = matrix(false);
    let tensor = stored(&matrix);
    let same = matrix.value.to_tensor();
    let values = |tensor: &Tensor| tensor.eval().unwrap().to_f64();
    assert!(tensor.is_on_host() && !(&tensor + 1.0).is_on_host());
    assert_eq!(values(&tensor), values(&same));
    assert_eq!(values(&(&tensor * 2.0).sum(0)), values(&(&same * 2.0).sum(0)));
    let loss = tensor.to_dtype(DType::F32).square().sum_all();
    assert_eq!(values(&grad(&loss, &[&tensor])[0]), values(&(&same * 2.0)));
    // A cell converts its value on the host, where each device gets only its part.
    let variable = Variable::new(tensor);
    variable.to_dtype(DType::F32);
    variable.to_dtype(DType::F16);
    assert!(variable.get().is_on_host());
    let expected = same.to_dtype(DType::F32).to_dtype(DType::F16);
    assert_eq!(values(&variable.get()), values(&expected));
    let integers = Literal::from_slice(&[7i32; 400], [400]).unwrap().to_tensor();
    assert_eq!(values(&integers.to_dtype_on_host(DType::F32)), [7.0; 400]);
}

#[test]
fn a_digest_of_a_program_needs_no_elements() {
    let matrix = matrix(false);
    let digest = |tensor: Tensor| {
        let function = Function::new("f", Vec::new(), vec![tensor]);
        function.fingerprint(&Mesh::new([("data", 1)]).unwrap()).unwrap()
    };
    let tensor = stored(&matrix);
    let same = digest(tensor.to_dtype_on_host(DType::F32));
    assert_eq!(digest(tensor.to_dtype_on_host(DType::F32)), same);
    assert_ne!(digest(tensor.to_dtype_on_host(DType::F16)), same);
    assert!(matrix.reads.lock().unwrap().is_empty());
}

#[test]
fn a_value_that_cannot_be_read_is_an_error() {
    let tensor = stored(&matrix(true));
    assert!(tensor.literal().is_none());
    for tensor in [&tensor, &(&tensor + 1.0), &tensor.to_dtype_on_host(DType::F32)] {
        let error = tensor.eval().unwrap_err().to_string();
        assert!(error.contains("matrix.bin: it was changed"), "{error}");
    }
    let ty = TensorType::new(DType::F32, [8]);
    let error = runtime().parts_to_devices(&ty, &Sharding::replicated(), |_| Ok([0; 3][..].into()));
    assert!(error.is_err());
}

#[test]
fn floats_convert_on_the_host_as_on_a_device() {
    let numbers = (0..200_000).map(|i| f32::from_bits((i as u32).wrapping_mul(2_654_435_761)));
    // Devices may flush numbers below the normal ones to zero.
    let numbers: Vec<f32> = numbers.filter(|x| x.is_finite() && x.abs() > 1e-37).collect();
    let floats = Literal::from_slice(&numbers, [numbers.len()]).unwrap();
    for from in [DType::F32, DType::Bf16, DType::F64] {
        let from = floats.to_dtype(from).unwrap();
        for to in [DType::F32, DType::Bf16, DType::F64] {
            let on_device = (from.to_tensor().to_dtype(to) + 0.0).eval().unwrap();
            let on_host = from.to_dtype(to).unwrap();
            assert!(on_host.bytes() == on_device.bytes(), "{} to {to}", from.ty());
        }
    }
}
