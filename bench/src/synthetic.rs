//! Synthetic data. The peers in Rust share this file.

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Approximately normal: the sum of four uniform numbers, with variance 1.
    fn normal(&mut self) -> f32 {
        let bits = self.next();
        let sum: u64 = (0..4).map(|i| (bits >> (16 * i)) & 0xffff).sum();
        (sum as f32 / 65535.0 - 2.0) * 3_f32.sqrt()
    }

    /// Generates images of a size in bytes, with ten classes: noise whose brightness depends on the
    /// class.
    pub(crate) fn byte_images(&mut self, images: usize, size: usize) -> (Vec<u8>, Vec<i32>) {
        let classes: Vec<i32> = (0..images).map(|_| self.below(10) as i32).collect();
        let mut values = Vec::with_capacity(images * size);
        for class in &classes {
            let brightness = 12 * *class as u8;
            let end = values.len() + size;
            while values.len() < end {
                let noise = self.next().to_le_bytes().map(|byte| brightness + (byte >> 1));
                values.extend_from_slice(&noise[..noise.len().min(end - values.len())]);
            }
        }
        (values, classes)
    }

    /// Generates samples of a size, with ten classes: each sample is the class's prototype at half
    /// strength, plus noise.
    pub(crate) fn samples(&mut self, samples: usize, size: usize) -> (Vec<f32>, Vec<i32>) {
        let prototypes: Vec<f32> = (0..10 * size).map(|_| 0.5 * self.normal()).collect();
        let classes: Vec<i32> = (0..samples).map(|_| self.below(10) as i32).collect();
        let mut values = Vec::with_capacity(samples * size);
        for &class in &classes {
            let prototype = &prototypes[class as usize * size..][..size];
            values.extend(prototype.iter().map(|value| value + self.normal()));
        }
        (values, classes)
    }
}
