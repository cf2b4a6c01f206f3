//! Keys derived with numbers of all integer types. The expected keys are those of JAX 0.10.2:
//! `jax.random.fold_in(jax.random.PRNGKey(42), data)`.

use std::collections::HashSet;

use fulmen_tensor::{Tensor, random};

fn bits(key: &Tensor) -> Vec<u32> {
    key.eval().unwrap().to_vec().unwrap()
}

#[test]
fn any_integer_makes_the_key_of_jax() {
    let key = random::key(42);
    // A Python integer.
    let seven = [2547012911, 1371500959];
    assert_eq!(bits(&random::fold_in(&key, 7)), seven);
    assert_eq!(bits(&random::fold_in(&key, 7u8)), seven);
    assert_eq!(bits(&random::fold_in(&key, 7usize)), seven);
    assert_eq!(bits(&random::fold_in(&key, 7i64)), seven);
    assert_eq!(bits(&random::fold_in(&key, 7u64)), seven);
    assert_eq!(bits(&random::fold_in(&key, 1u32 << 31)), [3181546281, 2228815013]);
    assert_eq!(bits(&random::fold_in(&key, u64::from(u32::MAX))), [2398536845, 3890976714]);
    // `jnp.int32(-5)`, `jnp.uint8(200)`, `jnp.int8(-3)`.
    let negative = [1987571745, 631152681];
    assert_eq!(bits(&random::fold_in(&key, -5)), negative);
    assert_eq!(bits(&random::fold_in(&key, -5i64)), negative);
    assert_eq!(bits(&random::fold_in_tensor(&key, Tensor::scalar(-5i32))), negative);
    let byte = Tensor::scalar(200u8);
    assert_eq!(bits(&random::fold_in_tensor(&key, byte)), [173030116, 118232927]);
    let byte = Tensor::scalar(-3i8);
    assert_eq!(bits(&random::fold_in_tensor(&key, byte)), [3870250634, 4275682102]);
}

#[test]
fn different_numbers_make_different_keys() {
    let key = random::key(0);
    let large = [1i64 << 32, (1 << 32) + 7, 7 << 32, i64::MAX, i64::MIN, -(1 << 40), 0, 7, -1];
    let mut seen: HashSet<Vec<u32>> =
        large.iter().map(|&number| bits(&random::fold_in(&key, number))).collect();
    assert!(seen.insert(bits(&random::fold_in(&key, u64::MAX - 1))));
    assert_eq!(seen.len(), large.len() + 1);
    let fault = random::fold_in(&key, 1i128 << 64);
    assert!(fault.fault().unwrap().message().contains("more than 64 bits"));
    let wide = random::fold_in_tensor(&key, Tensor::scalar(5i64));
    assert!(wide.fault().unwrap().message().contains("an integer scalar of up to 32 bits"));
}
