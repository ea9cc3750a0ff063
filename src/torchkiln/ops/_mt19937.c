/* Bernoulli samples from torch's CPU generator, the same bits as at::Tensor::bernoulli_.

   torch draws one sample at a time through a locked generator; here whole blocks of the Mersenne
   Twister are advanced and tempered in loops that the compiler vectorises. `state` is the byte
   blob of torch.get_rng_state(), changed in place. */
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { N = 624, M = 397, CHUNK = 2048 };

/* Layout of torch's generator state (CPUGeneratorImplStateLegacy). */
typedef struct {
  uint64_t seed;
  int32_t left;
  int32_t seeded;
  uint64_t next;
  uint64_t words[N];
} torch_state;

static inline uint32_t twist(uint32_t u, uint32_t v) {
  uint32_t mixed = (u & 0x80000000u) | (v & 0x7fffffffu);
  return (mixed >> 1) ^ (-(v & 1u) & 0x9908b0dfu);
}

static void advance(uint32_t *restrict s) {
  for (int j = 0; j < N - M; j++) s[j] = s[j + M] ^ twist(s[j], s[j + 1]);
  for (int j = N - M; j < N - 1; j++) s[j] = s[j + M - N] ^ twist(s[j], s[j + 1]);
  s[N - 1] = s[M - 1] ^ twist(s[N - 1], s[0]);
}

static void temper(const uint32_t *restrict in, uint32_t *restrict out, int64_t count) {
  for (int64_t j = 0; j < count; j++) {
    uint32_t y = in[j];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    y ^= y >> 18;
    out[j] = y;
  }
}

void torchkiln_bernoulli(void *blob, float *out, int64_t count, double p) {
  torch_state state;
  memcpy(&state, blob, sizeof state);
  uint32_t words[N], draws[2 * CHUNK];
  for (int j = 0; j < N; j++) words[j] = (uint32_t)state.words[j];
  int64_t left = state.left, next = (int64_t)state.next;
  /* A sample is 1 where a 53-bit fraction is below p: compared as integers, exactly. */
  const uint64_t limit = (uint64_t)ceil(p * 9007199254740992.0);

  while (count > 0) {
    const int64_t samples = count < CHUNK ? count : CHUNK;
    int64_t filled = 0, wanted = 2 * samples;
    while (filled < wanted) {
      if (left == 1) {
        advance(words);
        left = N + 1;
        next = 0;
      }
      int64_t take = left - 1 < wanted - filled ? left - 1 : wanted - filled;
      temper(words + next, draws + filled, take);
      filled += take;
      next += take;
      left -= take;
    }
    for (int64_t i = 0; i < samples; i++) {
      uint64_t fraction = ((uint64_t)(draws[2 * i] & 0x1fffffu) << 32) | draws[2 * i + 1];
      out[i] = fraction < limit ? 1.0f : 0.0f;
    }
    out += samples;
    count -= samples;
  }
  for (int j = 0; j < N; j++) state.words[j] = words[j];
  state.left = (int32_t)left;
  state.next = (uint64_t)next;
  memcpy(blob, &state, sizeof state);
}
