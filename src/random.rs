//! Numbers that are the same in every run with the same seed: for simulations alone.

/// A small generator of random numbers (SplitMix64).
#[derive(Clone, Debug, Default)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
