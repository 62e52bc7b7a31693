// Ensembles of critics with two hidden layers: values of several actions per state, the way back from
// values to actions, and the gradients of a least-squares loss.
//
// A block of rows goes through all layers while it is in the cache.

#include "numbers.h"

namespace {

// With 256 columns two blocks of so many rows and the weights between them fit a usual second-level
// cache.
constexpr int64_t kBlockRows = 120;

struct Shape {
  int64_t members, batch, actions, obs, action, hidden, outputs;
  int64_t rows() const { return batch * actions; }
  int64_t inputs() const { return obs + action; }
};

// The gradients of one member's layers.
struct Gradients {
  float *weight1, *bias1, *weight2, *bias2, *last, *last_bias;
};

void column_sums(const float* in, int64_t rows, int64_t columns, float* out) {
  std::fill(out, out + columns, 0.0f);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) out[c] += in[r * columns + c];
}

// One member. `last` is [outputs, hidden].
struct Critic {
  const Shape& shape;
  const float *obs, *action, *weight1, *bias1, *weight2, *bias2, *last, *last_bias;

  // The second layer's weights, or their transpose, for products.
  template <typename Factors = Single>
  const typename Factors::Number* packed(Matrix weight) const {
    using Number = typename Factors::Number;
    Number* out = scratch.get<Number>(kPacked, shape.hidden * shape.hidden);
    pack<Factors>(weight, shape.hidden, shape.hidden, out);
    return out;
  }

  // The first layer's weights of the observation, for products.
  const float* packed_obs() const {
    float* out = scratch.get(kPackedObs, shape.obs * shape.hidden);
    pack(plain(weight1, shape.hidden), shape.obs, shape.hidden, out);
    return out;
  }

  // The first layer's sums over the observations of states from `begin` to `end`.
  const float* state_halves(int64_t begin, int64_t end, const float* packed_obs) const {
    float* out = scratch.get(kHalves, (end - begin) * shape.hidden);
    product(plain(obs + begin * shape.obs, shape.obs), end - begin, shape.obs, packed_obs,
            shape.hidden, out);
    return out;
  }

  // Value and slope of the first layer's activation in one row.
  template <typename Activation, typename Use>
  void first(const float* half, int64_t row, const Use& use) const {
    // Copies of members: for all that the compiler knows, what is stored may change the members.
    const int64_t H = shape.hidden, A = shape.action;
    const float *weights = weight1 + shape.obs * H, *bias = bias1, *actions = action + row * A;
    for (int64_t h = 0; h < H; h += kLanes) {
      Vec x = load(half + h) + load(bias + h), value, slope;
      for (int64_t a = 0; a < A; ++a) x += actions[a] * load(weights + a * H + h);
      Activation::apply(x, value, slope);
      use(h, value, slope);
    }
  }

  // The second layer's activations, their slopes if these are asked for, and the values of `rows` rows.
  template <typename Activation, typename Factors, typename Number>
  void finish(const Number* first, const Number* packed, int64_t rows, float* second,
              float* slopes, float* values) const {
    const int64_t H = shape.hidden, O = shape.outputs;
    const float *bias = bias2, *last = this->last, *last_bias = this->last_bias;
    product<Factors>(plain(first, H), rows, H, packed, H, second);
    for (int64_t r = 0; r < rows; ++r) {
      float* x = second + r * H;
      Vec terms = {};  // of the first output, on the way
      for (int64_t h = 0; h < H; h += kLanes) {
        Vec value, slope;
        Activation::apply(load(x + h) + load(bias + h), value, slope);
        store(x + h, value);
        if (slopes) store(slopes + r * H + h, slope);
        terms += value * load(last + h);
      }
      values[r * O] = sum(terms) + last_bias[0];
      for (int64_t o = 1; o < O; ++o) values[r * O + o] = dot(x, last + o * H, H) + last_bias[o];
    }
  }

  // The cotangents of one row's second layer, before its activation.
  template <typename Factors>
  void before_second(const float* cotangent, const float* slopes,
                     typename Factors::Number* out) const {
    for (int64_t h = 0; h < shape.hidden; h += kLanes) {
      Vec x = {};
      for (int64_t o = 0; o < shape.outputs; ++o)
        x += cotangent[o] * load(last + o * shape.hidden + h);
      Factors::keep(out + h, x * load(slopes + h));
    }
  }

  // use(first, last) for every block of the states from `begin` to `end`.
  template <typename Use>
  void each_block(int64_t begin, int64_t end, const Use& use) const {
    const int64_t states = std::max<int64_t>(1, kBlockRows / shape.actions);
    for (; begin < end; begin += states) use(begin, std::min(begin + states, end));
  }

  // Values of all actions of the states from `begin` to `end`, and the second layer's slopes.
  template <typename Activation, typename Factors>
  void forward(int64_t begin, int64_t end, float* values, float* slopes) const {
    const int64_t N = shape.actions, H = shape.hidden;
    using Number = typename Factors::Number;
    const float* by_obs = packed_obs();
    const Number* by_first = packed<Factors>(plain(weight2, H));
    each_block(begin, end, [&](int64_t begin, int64_t end) {
      const int64_t rows = (end - begin) * N;
      const float* halves = state_halves(begin, end, by_obs);
      Number* x = scratch.get<Number>(kFirst, rows * H);
      for (int64_t r = 0; r < rows; ++r)
        first<Activation>(
            halves + r / N * H, begin * N + r,
            [to = x + r * H](int64_t h, Vec value, Vec) { Factors::keep(to + h, value); });
      finish<Activation, Factors>(x, by_first, rows, scratch.get(kSecond, rows * H),
                                  slopes ? slopes + begin * N * H : nullptr,
                                  values + begin * N * shape.outputs);
    });
  }

  // Cotangents of the actions of the states from `begin` to `end`; rows whose cotangents are zero
  // cost nothing.
  template <typename Activation, typename Factors>
  void backward(int64_t begin, int64_t end, const float* cotangents, const float* slopes,
                float* grads) const {
    const int64_t N = shape.actions, H = shape.hidden, A = shape.action, O = shape.outputs;
    std::fill(grads + begin * N * A, grads + end * N * A, 0.0f);
    auto zero = [&](int64_t begin, int64_t end) {
      return std::all_of(cotangents + begin * O, cotangents + end * O,
                         [](float c) { return c == 0.0f; });
    };
    if (zero(begin * N, end * N)) return;
    using Number = typename Factors::Number;
    const float* by_obs = packed_obs();
    const Number* by_second = packed<Factors>(transposed(weight2, H));
    std::vector<int64_t> needed;
    each_block(begin, end, [&](int64_t begin, int64_t end) {
      Number* x = scratch.get<Number>(kSecond, (end - begin) * N * H);
      needed.clear();
      for (int64_t row = begin * N; row < end * N; ++row) {
        if (zero(row, row + 1)) continue;
        before_second<Factors>(cotangents + row * O, slopes + row * H, x + needed.size() * H);
        needed.push_back(row);
      }
      float* g = scratch.get(kBack, needed.size() * H);
      product<Factors>(plain(x, H), needed.size(), H, by_second, H, g);
      const float* halves = state_halves(begin, end, by_obs);
      for (int64_t row : needed) {
        first<Activation>(halves + (row / N - begin) * H, row,
                          [g](int64_t h, Vec, Vec slope) { store(g + h, load(g + h) * slope); });
        for (int64_t a = 0; a < A; ++a)
          grads[row * A + a] = dot(g, weight1 + (shape.obs + a) * H, H);
        g += H;
      }
    });
  }

  // Values, one action per state, and the gradient of `scale` / 2 times their squared distances from
  // the targets.
  template <typename Activation>
  void regress(const float* targets, float scale, float* values, const Gradients& grads) const {
    const int64_t B = shape.batch, H = shape.hidden, O = shape.outputs;
    const float* halves = state_halves(0, B, packed_obs());
    float *x = scratch.get(kFirst, B * H), *first_slopes = scratch.get(kFirstSlopes, B * H);
    for (int64_t r = 0; r < B; ++r)
      first<Activation>(halves + r * H, r, [&](int64_t h, Vec value, Vec slope) {
        store(x + r * H + h, value);
        store(first_slopes + r * H + h, slope);
      });
    float *y = scratch.get(kSecond, B * H), *slopes = scratch.get(kSecondSlopes, B * H);
    finish<Activation, Single>(x, packed(plain(weight2, H)), B, y, slopes, values);

    float* errors = scratch.get(kErrors, B * O);
    for (int64_t i = 0; i < B * O; ++i) errors[i] = scale * (values[i] - targets[i]);
    std::fill(grads.last, grads.last + O * H, 0.0f);
    for (int64_t r = 0; r < B; ++r)
      for (int64_t o = 0; o < O; ++o) add(grads.last + o * H, errors[r * O + o], y + r * H);
    column_sums(errors, B, O, grads.last_bias);

    for (int64_t r = 0; r < B; ++r)
      before_second<Single>(errors + r * O, slopes + r * H, slopes + r * H);
    column_sums(slopes, B, H, grads.bias2);
    float* right = scratch.get(kBack, B * H);
    pack(plain(slopes, H), B, H, right);
    product(transposed(x, H), H, B, right, H, grads.weight2);

    product(plain(slopes, H), B, H, packed(transposed(weight2, H)), H, y);
    for (int64_t i = 0; i < B * H; i += kLanes) store(y + i, load(y + i) * load(first_slopes + i));
    column_sums(y, B, H, grads.bias1);
    pack(plain(y, H), B, H, right);
    product(transposed(obs, shape.obs), shape.obs, B, right, H, grads.weight1);
    product(transposed(action, shape.action), shape.action, B, right, H,
            grads.weight1 + shape.obs * H);
  }

 private:
  void add(float* to, float factor, const float* x) const {
    for (int64_t h = 0; h < shape.hidden; h += kLanes)
      store(to + h, load(to + h) + factor * load(x + h));
  }
};

// --- calls from XLA -------------------------------------------------------------------------------

// The arguments that all calls have in common.
struct Ensemble {
  Shape shape;
  const float *obs, *action, *weight1, *bias1, *weight2, *bias2, *last, *last_bias;

  Ensemble(Array obs, Array action, Array weight1, Array bias1, Array weight2, Array bias2, Array last,
           Array last_bias)
      : shape{weight2.dimensions()[0], action.dimensions()[0], action.dimensions()[1],
              obs.dimensions()[1],     action.dimensions()[2], weight2.dimensions()[1],
              last.dimensions()[1]},
        obs(obs.typed_data()),
        action(action.typed_data()),
        weight1(weight1.typed_data()),
        bias1(bias1.typed_data()),
        weight2(weight2.typed_data()),
        bias2(bias2.typed_data()),
        last(last.typed_data()),
        last_bias(last_bias.typed_data()) {}

  Critic member(int64_t m) const {
    const int64_t H = shape.hidden, O = shape.outputs;
    return {shape,
            obs, action,
            weight1 + m * shape.inputs() * H, bias1 + m * H,
            weight2 + m * H * H, bias2 + m * H,
            last + m * O * H, last_bias + m * O};
  }

  // work(member, first state, last state) for parts of every member's states: small enough that no
  // thread waits long for another, large enough that packing the weights for each does not count.
  template <typename Work>
  void each_part(ffi::ThreadPool& pool, const Work& work) const {
    const int64_t parts = (shape.rows() + 4 * kBlockRows - 1) / (4 * kBlockRows);
    share(pool, shape.members * parts, [&](int64_t i) {
      const int64_t part = i % parts;
      work(i / parts, part * shape.batch / parts, (part + 1) * shape.batch / parts);
    });
  }
};

// use(activation, factors) with the types of these names.
template <typename Use>
void choose(int64_t activation, bool rounded, const Use& use) {
  auto with = [&](auto activation) {
    rounded ? use(activation, Rounded{}) : use(activation, Single{});
  };
  activation == 0 ? with(Relu{}) : activation == 1 ? with(Silu{}) : with(Elu{});
}

ffi::Error Forward(ffi::ThreadPool pool, Array obs, Array action, Array weight1, Array bias1,
                   Array weight2, Array bias2, Array last, Array last_bias, Result values,
                   Result slopes, int64_t activation, bool rounded) {
  Ensemble e(obs, action, weight1, bias1, weight2, bias2, last, last_bias);
  const int64_t by_member = e.shape.rows() * e.shape.outputs, H = e.shape.hidden;
  const bool keep = slopes->element_count() > 0;
  choose(activation, rounded, [&](auto activation, auto factors) {
    e.each_part(pool, [&](int64_t m, int64_t begin, int64_t end) {
      e.member(m).template forward<decltype(activation), decltype(factors)>(
          begin, end, values->typed_data() + m * by_member,
          keep ? slopes->typed_data() + m * e.shape.rows() * H : nullptr);
    });
  });
  return ffi::Error::Success();
}

ffi::Error Backward(ffi::ThreadPool pool, Array obs, Array action, Array weight1, Array bias1,
                    Array weight2, Array bias2, Array last, Array last_bias, Array cotangents,
                    Array slopes, Result grads, int64_t activation, bool rounded) {
  Ensemble e(obs, action, weight1, bias1, weight2, bias2, last, last_bias);
  const int64_t rows = e.shape.rows();
  choose(activation, rounded, [&](auto activation, auto factors) {
    e.each_part(pool, [&](int64_t m, int64_t begin, int64_t end) {
      e.member(m).template backward<decltype(activation), decltype(factors)>(
          begin, end, cotangents.typed_data() + m * rows * e.shape.outputs,
          slopes.typed_data() + m * rows * e.shape.hidden,
          grads->typed_data() + m * rows * e.shape.action);
    });
  });
  return ffi::Error::Success();
}

ffi::Error Regress(ffi::ThreadPool pool, Array obs, Array action, Array weight1, Array bias1,
                   Array weight2, Array bias2, Array last, Array last_bias, Array targets,
                   Result values, Result by_weight1, Result by_bias1, Result by_weight2,
                   Result by_bias2, Result by_last, Result by_last_bias, int64_t activation,
                   float scale) {
  Ensemble e(obs, action, weight1, bias1, weight2, bias2, last, last_bias);
  const Shape& s = e.shape;
  choose(activation, false, [&](auto activation, auto) {
    share(pool, s.members, [&](int64_t m) {
      auto of_member = [m, &s](Result& all) {
        return all->typed_data() + m * (int64_t)all->element_count() / s.members;
      };
      e.member(m).template regress<decltype(activation)>(
          targets.typed_data() + m * s.rows() * s.outputs, scale, of_member(values),
          {of_member(by_weight1), of_member(by_bias1), of_member(by_weight2), of_member(by_bias2),
           of_member(by_last), of_member(by_last_bias)});
    });
  });
  return ffi::Error::Success();
}

auto arguments() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<Array>().Arg<Array>()  // observations, actions
      .Arg<Array>().Arg<Array>()  // first layer
      .Arg<Array>().Arg<Array>()  // second layer
      .Arg<Array>().Arg<Array>();  // last layer
}

}  // namespace

// What multiplies: in single precision, or factors rounded to bfloat16.
extern "C" const char* units(bool rounded) { return rounded ? rounded_units() : kUnits; }

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    critics_forward, Forward,
    arguments().Ret<Array>().Ret<Array>().Attr<int64_t>("activation").Attr<bool>("rounded"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    critics_backward, Backward,
    arguments()
        .Arg<Array>().Arg<Array>()
        .Ret<Array>()
        .Attr<int64_t>("activation").Attr<bool>("rounded"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(critics_regress, Regress,
                              arguments()
                                  .Arg<Array>()
                                  .Ret<Array>()
                                  .Ret<Array>().Ret<Array>()
                                  .Ret<Array>().Ret<Array>()
                                  .Ret<Array>().Ret<Array>()
                                  .Attr<int64_t>("activation").Attr<float>("scale"));
