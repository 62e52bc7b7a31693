// Vectors, activations, matrix products and the sharing of work, for networks on a CPU.
//
// Every sum runs over its terms in their order, so that a row's result depends neither on its
// neighbours nor on the number of threads.

#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__AVX512BF16__)
#include <immintrin.h>
#if defined(__AMX_BF16__) && defined(__linux__)
#define ALGD_MATRIX_UNIT
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

// --- numbers, a vector at a time ------------------------------------------------------------------

// A tile of the result, `kTileRows` by two vectors, fills the registers but for three or four.
#if defined(__AVX512F__)
constexpr int kLanes = 16, kTileRows = 12;
constexpr const char* kUnits = "avx512";
#elif defined(__AVX2__)
constexpr int kLanes = 8, kTileRows = 6;
constexpr const char* kUnits = "avx2";
#else
constexpr int kLanes = 4, kTileRows = 6;
constexpr const char* kUnits = "plain";
#endif
constexpr int kTileColumns = 2 * kLanes;

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef int32_t Bits __attribute__((vector_size(4 * kLanes)));

inline Vec load(const float* from) {
  Vec v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

inline void store(float* to, Vec v) { std::memcpy(to, &v, sizeof(v)); }

inline Vec fill(float x) { return x - Vec{}; }

inline float sum(Vec v) {
  float total = 0.0f;
  for (int i = 0; i < kLanes; ++i) total += v[i];
  return total;
}

inline Vec to_bfloat16(Vec x) {
  Bits bits = (Bits)x;
  return (Vec)((bits + 0x7fff + ((bits >> 16) & 1)) & (int32_t)0xffff0000);
}

// e^x = 2^n 2^f with |f| <= 1/2, where a polynomial serves; n goes into the exponent's bits.
inline Vec exponential(Vec x) {
  x = x < 87.0f ? x : fill(87.0f);
  x = x > -87.0f ? x : fill(-87.0f);
  const Vec shift = fill(12582912.0f);  // 1.5 * 2^23: what is added to it is rounded to an integer
  Vec shifted = x * 1.44269504f + shift;
  Vec f = x * 1.44269504f - (shifted - shift);
  Vec p = fill(1.5403530e-4f);
  p = p * f + 1.3333558e-3f;
  p = p * f + 9.6181291e-3f;
  p = p * f + 5.5504109e-2f;
  p = p * f + 2.4022651e-1f;
  p = p * f + 6.9314718e-1f;
  p = p * f + 1.0f;
  return (Vec)((Bits)p + ((Bits)shifted << 23));
}

struct Relu {
  static void apply(Vec x, Vec& value, Vec& slope) {
    value = x < 0.0f ? Vec{} : x;  // and not the other way round: what is not a number stays so
    slope = x > 0.0f ? fill(1.0f) : Vec{};
  }
};

struct Silu {
  static void apply(Vec x, Vec& value, Vec& slope) {
    Vec s = 1.0f / (1.0f + exponential(-x));
    value = x * s;
    slope = s + value * (1.0f - s);
  }
};

struct Elu {
  static void apply(Vec x, Vec& value, Vec& slope) {
    Vec e = exponential(x);
    value = x < 0.0f ? e - 1.0f : x;
    slope = x < 0.0f ? e : fill(1.0f);
  }
};

inline float dot(const float* left, const float* right, int64_t size) {
  Vec terms = {};
  for (int64_t i = 0; i < size; i += kLanes) terms += load(left + i) * load(right + i);
  return sum(terms);
}

// --- matrix products ------------------------------------------------------------------------------

template <typename Number>
struct MatrixOf {
  const Number* data;
  int64_t row, column;  // steps from one to the next
};

using Matrix = MatrixOf<float>;

template <typename Number>
MatrixOf<Number> plain(const Number* data, int64_t width) { return {data, width, 1}; }
inline Matrix transposed(const float* data, int64_t width) { return {data, 1, width}; }

// So many numbers of a row.
inline Vec along(Matrix from, int64_t row, int64_t column) {
  const float* first = from.data + row * from.row + column * from.column;
  if (from.column == 1) return load(first);
  Vec x;
  for (int i = 0; i < kLanes; ++i) x[i] = first[i * from.column];
  return x;
}

// How the factors of a product are held. The right one goes kDepth rows at a time, and the left one
// kDepth columns.
struct Single {
  using Number = float;
  static constexpr int kDepth = 1;
  static void keep(float* to, Vec x) { store(to, x); }
  static void pack(Matrix from, int64_t row, int64_t column, float* to) {
    keep(to, along(from, row, column));
  }
  static void add(Vec& sum, const float* left, const float* right) {
    sum += fill(*left) * load(right);
  }
};

#if defined(__AVX512BF16__)
// Rounded to bfloat16: a sum takes in two products at once. A matrix unit reads the same pairs.
struct Rounded {
  using Number = uint16_t;
  static constexpr int kDepth = 2;
  static void keep(uint16_t* to, Vec x) {
    auto halves = _mm512_cvtneps_pbh((__m512)x);
    std::memcpy(to, &halves, sizeof(halves));
  }
  static void pack(Matrix from, int64_t row, int64_t column, uint16_t* to) {
    auto bits = [](Vec x) { return (__m512i)to_bfloat16(x); };
    __m512i pairs = _mm512_srli_epi32(bits(along(from, row, column)), 16) |
                    bits(along(from, row + 1, column));
    std::memcpy(to, &pairs, sizeof(pairs));
  }
  static void add(Vec& sum, const uint16_t* left, const uint16_t* right) {
    int32_t pair;
    std::memcpy(&pair, left, sizeof(pair));
    __m512i pairs;
    std::memcpy(&pairs, right, sizeof(pairs));
    sum = (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)pairs);
  }
};
constexpr const char* kRoundedUnits = "avx512-bf16";
#else
// Rounded to bfloat16 and multiplied as they are, where the processor has no units for them.
struct Rounded : Single {
  static void keep(float* to, Vec x) { store(to, to_bfloat16(x)); }
  static void pack(Matrix from, int64_t row, int64_t column, float* to) {
    keep(to, along(from, row, column));
  }
};
constexpr const char* kRoundedUnits = kUnits;
#endif

// `rows` rows of the product with a panel of kTileColumns columns.
template <typename Factors, int rows, typename Number>
inline void tile(MatrixOf<Number> in, int64_t depth, const Number* panel, float* out,
                 int64_t width) {
  constexpr int kStep = Factors::kDepth;
  Vec sums[rows][2] = {};
  for (int64_t k = 0; k < depth; k += kStep, panel += kStep * kTileColumns)
    for (int r = 0; r < rows; ++r) {
      const Number* left = in.data + r * in.row + k * in.column;
      Factors::add(sums[r][0], left, panel);
      Factors::add(sums[r][1], left, panel + kStep * kLanes);
    }
  for (int r = 0; r < rows; ++r) {
    store(out + r * width, sums[r][0]);
    store(out + r * width + kLanes, sums[r][1]);
  }
}

template <typename Factors, int rows, typename Number>
inline void last_tile(int64_t left, MatrixOf<Number> in, int64_t depth, const Number* panel,
                      float* out, int64_t width) {
  if constexpr (rows > 0) {
    if (left == rows) return tile<Factors, rows>(in, depth, panel, out, width);
    last_tile<Factors, rows - 1>(left, in, depth, panel, out, width);
  }
}

#if defined(ALGD_MATRIX_UNIT)
// Whether the kernel lets this process use the matrix unit's registers, which it must be asked.
inline bool matrix_unit_allowed() {
  constexpr int kAskPermission = 0x1023, kTileData = 18;
  static const bool allowed = syscall(SYS_arch_prctl, kAskPermission, kTileData) == 0;
  return allowed;
}

// The matrix unit's registers for `rows` <= 32 rows of the result by kTileColumns columns: 0 to 3 are
// sums, 4 and 5 left factors, 6 and 7 right ones. Odd halves of the rows are 2, 3 and 5.
inline void shape_registers(int64_t rows) {
  struct alignas(64) {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  } shape;
  for (int i = 0; i < 8; ++i) {
    shape.bytes[i] = 64;
    const int64_t used = i > 5 ? 16 : i == 2 || i == 3 || i == 5 ? rows - 16 : rows;
    shape.rows[i] = std::clamp<int64_t>(used, 1, 16);
  }
  _tile_loadconfig(&shape);
}

// As many rows of the product with a panel as the registers are shaped for, more than 16 or not.
template <bool more>
inline void matrix_tile(MatrixOf<uint16_t> in, int64_t depth, const uint16_t* panel, float* out,
                        int64_t width) {
  const uint16_t* left = in.data;
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (more) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < depth; k += 32, left += 32, panel += 32 * kTileColumns) {
    _tile_loadd(6, panel, 4 * kTileColumns);
    _tile_loadd(7, panel + 2 * kLanes, 4 * kTileColumns);
    _tile_loadd(4, left, 2 * in.row);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (more) {
      _tile_loadd(5, left + 16 * in.row, 2 * in.row);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, out, 4 * width);
  _tile_stored(1, out + kLanes, 4 * width);
  if constexpr (more) {
    _tile_stored(2, out + 16 * width, 4 * width);
    _tile_stored(3, out + 16 * width + kLanes, 4 * width);
  }
}

// The product by the matrix unit; the depth is a multiple of 32.
inline void matrix_product(MatrixOf<uint16_t> in, int64_t rows, int64_t depth,
                           const uint16_t* packed, int64_t columns, float* out) {
  for (int64_t r = 0; r < rows;) {
    // Whole blocks of rows first, then those that are left.
    const int64_t block = std::min<int64_t>(rows - r, 32);
    const int64_t end = r + (rows - r) / block * block;
    shape_registers(block);
    for (int64_t first = 0; first < columns; first += kTileColumns)
      for (int64_t i = r; i < end; i += block) {
        const MatrixOf<uint16_t> from{in.data + i * in.row, in.row, 1};
        const uint16_t* panel = packed + first * depth;
        float* to = out + i * columns + first;
        block > 16 ? matrix_tile<true>(from, depth, panel, to, columns)
                   : matrix_tile<false>(from, depth, panel, to, columns);
      }
    r = end;
  }
  _tile_release();
}

inline const char* rounded_units() { return matrix_unit_allowed() ? "amx" : kRoundedUnits; }
#else
inline const char* rounded_units() { return kRoundedUnits; }
#endif

// A matrix in the order in which tiles read it: panels of kTileColumns columns, row by row.
template <typename Factors = Single>
void pack(Matrix weight, int64_t depth, int64_t columns, typename Factors::Number* packed) {
  for (int64_t first = 0; first < columns; first += kTileColumns)
    for (int64_t k = 0; k < depth; k += Factors::kDepth)
      for (int c = 0; c < kTileColumns; c += kLanes, packed += Factors::kDepth * kLanes)
        Factors::pack(weight, k, first + c, packed);
}

// out[rows, columns] = in[rows, depth] * weight[depth, columns], the weight packed.
template <typename Factors = Single>
void product(MatrixOf<typename Factors::Number> in, int64_t rows, int64_t depth,
             const typename Factors::Number* packed, int64_t columns, float* out) {
#if defined(ALGD_MATRIX_UNIT)
  if constexpr (std::is_same_v<Factors, Rounded>)
    if (matrix_unit_allowed()) return matrix_product(in, rows, depth, packed, columns, out);
#endif
  for (int64_t first = 0; first < columns; first += kTileColumns, packed += depth * kTileColumns) {
    auto from = in;
    int64_t r = 0;
    for (; r + kTileRows <= rows; r += kTileRows, from.data += kTileRows * in.row)
      tile<Factors, kTileRows>(from, depth, packed, out + r * columns + first, columns);
    last_tile<Factors, kTileRows - 1>(rows - r, from, depth, packed, out + r * columns + first,
                                      columns);
  }
}

// --- memory ---------------------------------------------------------------------------------------

// Memory of one thread, kept from call to call.
class Scratch {
 public:
  template <typename Number = float>
  Number* get(int slot, int64_t size) {
    auto& [held, data] = slots_[slot];
    const int64_t bytes = (sizeof(Number) * size + 63) / 64 * 64;
    if (held < bytes) {
      data.reset(std::aligned_alloc(64, bytes));
      held = bytes;
    }
    return static_cast<Number*>(data.get());
  }

 private:
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  std::pair<int64_t, std::unique_ptr<void, Free>> slots_[9];
};

thread_local Scratch scratch;
enum { kPacked, kPackedObs, kHalves, kFirst, kSecond, kFirstSlopes, kSecondSlopes, kBack, kErrors };

// --- threads --------------------------------------------------------------------------------------

// work(i) for i < count, on the pool's threads and this one. What no other thread has begun is done
// here, so that it ends even if the pool has no thread to spare.
template <typename Work>
void share(ffi::ThreadPool& pool, int64_t count, const Work& work) {
  struct Progress {
    std::atomic<int64_t> begun{0}, done{0};
  };
  auto progress = std::make_shared<Progress>();
  // A helper that comes late finds nothing left to begin and does not touch `work`, which may be gone.
  auto labour = [progress, count, &work] {
    for (int64_t i; (i = progress->begun++) < count; ++progress->done) work(i);
  };
  for (int64_t i = 1; i < std::min<int64_t>(pool.num_threads(), count); ++i)
    pool.Schedule(std::function<void()>(labour));
  labour();
  while (progress->done < count) std::this_thread::yield();
}

// work(first, last) for as many parts of the rows as there are threads.
template <typename Work>
void share_rows(ffi::ThreadPool& pool, int64_t rows, const Work& work) {
  const int64_t parts = std::min<int64_t>(pool.num_threads(), (rows + 63) / 64);
  share(pool, parts, [&](int64_t i) { work(i * rows / parts, (i + 1) * rows / parts); });
}

using Array = ffi::Buffer<ffi::F32>;
using Result = ffi::Result<Array>;

}  // namespace
