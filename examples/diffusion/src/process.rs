//! The process that turns an image into noise in many steps, and noise into an image in a few.

use fulmen::cli::clap;
use fulmen::prelude::*;

/// The noise schedule.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum NoiseSchedule {
    /// Ho et al. 2020: what a step adds rises evenly.
    Linear,
    /// Nichol and Dhariwal 2021: what is left of the picture falls as a cosine's square.
    Cosine,
}

/// The noise of each time step.
pub(crate) struct Process {
    /// The remaining fraction of the image's variance after each time step.
    alphas_cumprod: Vec<f64>,
}

impl Process {
    pub(crate) fn new(schedule: NoiseSchedule, timesteps: usize) -> Process {
        let share = |t: usize| t as f64 / timesteps as f64;
        let left = |t: usize| ((share(t) + 0.008) / 1.008 * std::f64::consts::FRAC_PI_2).cos().powi(2);
        let beta = |t: usize| match schedule {
            // From 0.0001 to 0.02 over 1000 steps.
            NoiseSchedule::Linear => (1000.0 / timesteps as f64 * (1e-4 + share(t) * 0.0199)).min(0.999),
            NoiseSchedule::Cosine => (1.0 - left(t + 1) / left(t)).min(0.999),
        };
        let mut product = 1.0;
        let alphas_cumprod = (0..timesteps).map(|t| {
            product *= 1.0 - beta(t);
            product
        });
        Process { alphas_cumprod: alphas_cumprod.collect() }
    }

    pub(crate) fn timesteps(&self) -> usize {
        self.alphas_cumprod.len()
    }

    /// Noisy versions of images `f32[batch, …]` at time steps `i32[batch]`.
    pub(crate) fn add_noise(&self, pictures: &Tensor, noise: &Tensor, timesteps: &Tensor) -> Tensor {
        let left: Vec<f32> = self.alphas_cumprod.iter().map(|&left| left as f32).collect();
        let left = Tensor::from_slice(&left, [left.len()]).take(0, timesteps).reshape([timesteps.size(0), 1, 1, 1]);
        pictures * left.sqrt() + noise * (1.0 - left).sqrt()
    }

    /// Images from noise `f32[batch, …]` in `count` steps, where `predict` estimates the noise at
    /// time steps `i32[batch]` (DDIM, Song et al. 2020).
    ///
    /// The steps are unrolled instead of a loop: XLA's convolutions on a CPU are about ten times
    /// slower inside one.
    pub(crate) fn sample(&self, noise: &Tensor, steps: usize, predict: impl Fn(&Tensor, &Tensor) -> Tensor) -> Tensor {
        let timesteps: Vec<usize> = (1..=steps).rev().map(|i| i * self.timesteps() / steps - 1).collect();
        let mut x = noise.clone();
        for (i, &t) in timesteps.iter().enumerate() {
            let left = self.alphas_cumprod[t];
            let then = timesteps.get(i + 1).map_or(1.0, |&t| self.alphas_cumprod[t]);
            let found = predict(&x, &Tensor::full(DType::I32, [noise.size(0)], t as f64));
            let picture = ((&x - found * (1.0 - left).sqrt()) / left.sqrt()).clamp(-1.0, 1.0);
            let noise = (x - &picture * left.sqrt()) / (1.0 - left).sqrt();
            x = picture * then.sqrt() + noise * (1.0 - then).sqrt();
        }
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the true noise each step is exact, whatever the schedule and the number of steps.
    #[test]
    fn noise_that_is_known_is_taken_away_again() {
        let picture = Tensor::from_slice(&[0.5f32, -0.25, 1.0, -1.0], [1, 1, 2, 2]);
        let noise = Tensor::from_slice(&[0.3f32, -1.2, 0.7, 2.0], [1, 1, 2, 2]);
        let ways = [NoiseSchedule::Linear, NoiseSchedule::Cosine].map(|schedule| {
            let process = Process::new(schedule, 100);
            assert!(process.alphas_cumprod.windows(2).all(|two| two[1] < two[0]), "{:?}", process.alphas_cumprod);
            assert!(
                process.alphas_cumprod[0] > 0.99 && process.alphas_cumprod[99] < 1e-4,
                "{:?}",
                process.alphas_cumprod
            );
            let noisy = process.add_noise(&picture, &noise, &Tensor::from_slice(&[99i32], [1]));
            process.sample(&noisy, 7, |_, _| noise.clone())
        });
        for way in ways {
            let found = way.eval().unwrap().to_vec::<f32>().unwrap();
            let off = found.iter().zip([0.5, -0.25, 1.0, -1.0]).fold(0.0f32, |off, (x, y)| off.max((x - y).abs()));
            assert!(off < 1e-2, "{found:?}");
        }
    }
}
