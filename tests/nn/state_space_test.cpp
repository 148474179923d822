// The recurrence of Mamba-2 in float64: chunks against one row after the other, gradients against finite differences.
#include "nn/state_space.h"

#include "nn/tools.h"

namespace metroplex::test::state_space_test {
namespace {

struct Sizes {
  int64_t s, b, heads, p, groups, n, chunk;
};
constexpr Sizes kSizes[] = {{1, 1, 1, 1, 1, 1, 1},  {7, 2, 4, 3, 2, 5, 3},   {24, 1, 6, 2, 3, 4, 8},
                            {23, 3, 2, 4, 1, 3, 5}, {40, 2, 4, 2, 4, 2, 64}, {129, 1, 2, 2, 1, 2, 16}};

nn::StateSpaceInputs make_inputs(const Sizes& size, uint64_t seed) {
  nn::StateSpaceInputs in;
  in.x = sample({size.s, size.b, size.heads, size.p}, seed);
  in.dt = sample({size.s, size.b, size.heads}, seed + 1).abs();
  in.a = -1 - sample({size.heads}, seed + 2).abs();
  in.b = sample({size.s, size.b, size.groups, size.n}, seed + 3);
  in.c = sample({size.s, size.b, size.groups, size.n}, seed + 4);
  return in;
}

// Documents of 1 to 11 rows, other ones in each sample.
at::Tensor make_documents(const Sizes& size) {
  at::Tensor ids = at::empty({size.b, size.s}, at::kLong);
  for (int64_t sample = 0; sample < size.b; ++sample) {
    int64_t id = 0, left = 5 + sample;
    for (int64_t row = 0; row < size.s; ++row) {
      if (left-- == 0) left = (id * 7 + sample * 3) % 11, ++id;
      ids[sample][row] = id;
    }
  }
  return ids;
}

at::Tensor make_state(const Sizes& size) {
  return sample({size.b, size.groups, size.n, size.heads / size.groups, size.p}, 9);
}

// Sums of up to 129 products, each of at most 129 decays, of size 1: about 129^0.5 * 2^-53 * 129 < 2e-13.
constexpr double kTolerance = 1e-12;

TEST(StateSpace, ChunksEqualOneRowAfterAnother) {
  for (const Sizes& size : kSizes) {
    for (const bool documents : {false, true}) {
      for (const bool continues : {false, true}) {
        SCOPED_TRACE(testing::Message() << size.s << " rows, documents " << documents << ", state " << continues);
        nn::StateSpaceInputs in = make_inputs(size, static_cast<uint64_t>(size.s));
        if (documents) in.documents = make_documents(size);
        if (continues) in.state = make_state(size);
        const nn::StateSpaceResult right = nn::recurrent_state_space(in),
                                   got = nn::chunked_state_space(in, size.chunk);
        EXPECT_LT(relative_difference(got.y, right.y), kTolerance);
        EXPECT_LT(relative_difference(got.state, right.state), kTolerance);
      }
    }
  }
}

TEST(StateSpace, DocumentsStartFromZero) {
  const Sizes size = kSizes[3];
  nn::StateSpaceInputs in = make_inputs(size, 3);
  in.documents = at::arange(size.s, at::kLong).div(9, "floor").expand({size.b, size.s});
  const at::Tensor packed = nn::recurrent_state_space(in).y;
  for (int64_t first = 0; first < size.s; first += 9) {
    const int64_t rows = std::min<int64_t>(9, size.s - first);
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, rows); };
    const at::Tensor alone =
        nn::recurrent_state_space({part(in.x), part(in.dt), in.a, part(in.b), part(in.c), {}, {}}).y;
    EXPECT_LT(relative_difference(part(packed), alone), kTolerance);
  }
}

TEST(StateSpace, ContinuesFromItsState) {
  const nn::StateSpaceInputs in = make_inputs(kSizes[2], 4);
  const nn::StateSpaceResult whole = nn::chunked_state_space(in, 8);
  const auto part = [&](const at::Tensor& x, int64_t first, int64_t rows) { return x.narrow(0, first, rows); };
  const auto run = [&](int64_t first, int64_t rows, const at::Tensor& state) {
    return nn::chunked_state_space({part(in.x, first, rows),
                                    part(in.dt, first, rows),
                                    in.a,
                                    part(in.b, first, rows),
                                    part(in.c, first, rows),
                                    {},
                                    state},
                                   8);
  };
  const nn::StateSpaceResult one = run(0, 13, {}), two = run(13, 11, one.state);
  EXPECT_LT(relative_difference(at::cat({one.y, two.y}), whole.y), kTolerance);
  EXPECT_LT(relative_difference(two.state, whole.state), kTolerance);
}

// Central differences with steps h: h^2 / 6 times the third derivative, which is below 1e3 here, and 2^-53 / h times
// the sum of 1e2 results.
TEST(StateSpace, GradientsEqualFiniteDifferences) {
  constexpr double kStep = 1e-5, kDifference = 1e-7;
  for (const Sizes& size : {kSizes[1], kSizes[3]}) {
    for (const bool documents : {false, true}) {
      nn::StateSpaceInputs in = make_inputs(size, 5);
      in.state = make_state(size);
      if (documents) in.documents = make_documents(size);
      const at::Tensor dy = sample({size.s, size.b, size.heads, size.p}, 6);
      const nn::StateSpaceGradients got = nn::chunked_state_space_backward(dy, in, size.chunk);
      const auto compare = [&](const char* name, at::Tensor& x, const at::Tensor& gradient) {
        const at::Tensor direction = sample(x.sizes().vec(), 7), saved = x;
        const auto loss = [&](double step) {
          x = saved + step * direction;
          return (nn::recurrent_state_space(in).y * dy).sum().item<double>();
        };
        const double expected = (loss(kStep) - loss(-kStep)) / (2 * kStep);
        x = saved;
        EXPECT_NEAR((gradient * direction).sum().item<double>() / expected, 1, kDifference) << name;
      };
      compare("x", in.x, got.x);
      compare("dt", in.dt, got.dt);
      compare("a", in.a, got.a);
      compare("b", in.b, got.b);
      compare("c", in.c, got.c);
    }
  }
}

TEST(StateSpace, HasShapesWithoutValues) {
  nn::StateSpaceInputs in = make_inputs(kSizes[3], 8), meta;
  in.documents = make_documents(kSizes[3]);
  const auto shape_only = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options().device(at::kMeta)); };
  meta = {shape_only(in.x),
          shape_only(in.dt),
          shape_only(in.a),
          shape_only(in.b),
          shape_only(in.c),
          shape_only(in.documents),
          {}};
  const nn::StateSpaceGradients real = nn::chunked_state_space_backward(in.x, in, 5),
                                shapes = nn::chunked_state_space_backward(meta.x, meta, 5);
  EXPECT_EQ(nn::chunked_state_space(meta, 5).y.sizes(), in.x.sizes());
  EXPECT_EQ(shapes.x.sizes(), real.x.sizes());
  EXPECT_EQ(shapes.dt.sizes(), real.dt.sizes());
  EXPECT_EQ(shapes.b.sizes(), real.b.sizes());
}

}  // namespace
}  // namespace metroplex::test::state_space_test
