// Threads take blocks of all groups from one queue, which balances the load even if row counts are skewed.
#include "kernels/grouped_product.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/cpu/Utils.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/grouped_choice.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace metroplex::kernels {
namespace {

constexpr GroupedChoice kChoices[] = {
    {false, Number::bf16, CpuNeeds::amx_bf16, "own tiles, AMX", bf16_amx, amx_cut, amx_begin, amx_end},
    {false, Number::f16, CpuNeeds::amx_fp16, "own tiles, AMX", f16_amx, amx_cut, amx_begin, amx_end},
    {false, Number::bf16, CpuNeeds::avx512_bf16, "own tiles, AVX512_BF16", bf16_dots, amx_cut},
    {false, Number::f32, CpuNeeds::avx512, "own panels, AVX-512", float_avx512, wide_cut},
    {false, Number::f64, CpuNeeds::avx512, "own panels, AVX-512", double_avx512, wide_cut},
    {false, Number::bf16, CpuNeeds::avx512, "own panels, AVX-512", bf16_avx512, half_cut},
    {false, Number::f16, CpuNeeds::avx512, "own panels, AVX-512", f16_avx512, half_cut},
    {false, Number::f32, CpuNeeds::avx2, "own panels, AVX2", float_avx2, wide_cut},
    {false, Number::f64, CpuNeeds::avx2, "own panels, AVX2", double_avx2, wide_cut},
    {false, Number::bf16, CpuNeeds::avx2, "own panels, AVX2", bf16_avx2, half_cut},
    {false, Number::f16, CpuNeeds::avx2, "own panels, AVX2", f16_avx2, half_cut},
    {false, Number::f32, CpuNeeds::nothing, "own panels", float_plain, wide_cut},
    {false, Number::f64, CpuNeeds::nothing, "own panels", double_plain, wide_cut},
    {false, Number::bf16, CpuNeeds::nothing, "own panels", bf16_plain, half_cut},
    {false, Number::f16, CpuNeeds::nothing, "own panels", f16_plain, half_cut},
    {.gpu = true,
     .number = Number::bf16,
     .needs = CpuNeeds::nothing,
     .name = "libtorch's _grouped_mm",
     .library = true,
     .from = 90,
     .below = 110},
    {true, Number::f32, CpuNeeds::nothing, "own tiles"},
    {true, Number::f64, CpuNeeds::nothing, "own tiles"},
    {true, Number::bf16, CpuNeeds::nothing, "own tiles, tensor cores"},
    {true, Number::f16, CpuNeeds::nothing, "own tiles, tensor cores"}};

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)
// Returns whether ONEDNN_MAX_CPU_ISA, if set, names an instruction set that contains one of `parts`.
bool onednn_may(std::initializer_list<const char*> parts) {
  const char* const set = std::getenv("ONEDNN_MAX_CPU_ISA");
  const std::string name = set == nullptr ? "" : set;
  if (name.empty() || name == "ALL" || name == "DEFAULT") return true;
  return std::any_of(parts.begin(), parts.end(), [&](const char* part) { return name.find(part) != name.npos; });
}

struct CpuSets {
  bool avx2 = false, avx512 = false, avx512_bf16 = false, amx_bf16 = false, amx_fp16 = false;
  CpuSets() {
    // The limits that libtorch and oneDNN obey apply here too.
    const std::string torch = at::get_cpu_capability();
    avx512 = torch != "DEFAULT" && torch != "AVX2" && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512dq");
    avx2 = torch != "DEFAULT" && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!avx512 || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return;
    const bool tiles = (d >> 24 & 1) != 0 && onednn_may({"AMX"}) && at::cpu::init_amx();
    amx_bf16 = tiles && (d >> 22 & 1) != 0;
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0) return;
    amx_fp16 = tiles && (a >> 21 & 1) != 0;
    avx512_bf16 = (a >> 5 & 1) != 0 && onednn_may({"AMX", "BF16", "FP16", "AVX10"});
  }
};
#else
struct CpuSets {
  bool avx2 = false, avx512 = false, avx512_bf16 = false, amx_bf16 = false, amx_fp16 = false;
};
#endif

// The blocks of the groups, in order; all blocks of a group have the same size, except the last.
struct GroupBlocks {
  GroupedProblem problem;
  int64_t first = 0, m_blocks = 0, m_size = 0;
};

GroupedProblem make_problem(const int64_t* arguments, const GroupedShape& shape, int64_t e) {
  const auto field = [&](GroupedField which) { return arguments[which * shape.groups + e]; };
  GroupedProblem problem;
  problem.a = reinterpret_cast<const void*>(field(kPointerA));
  problem.b = reinterpret_cast<const void*>(field(kPointerB));
  problem.c = reinterpret_cast<void*>(field(kPointerC));
  problem.lda = field(kLeadingA), problem.ldb = field(kLeadingB), problem.ldc = field(kLeadingC);
  problem.factor = read_factor(field(kGroupFactor));
  const int64_t rows = field(kGroupRows);
  switch (shape.op) {
    case GroupedOp::forward:
      problem.m = rows, problem.n = shape.out, problem.k = shape.in, problem.b_by_n = true;
      break;
    case GroupedOp::input_gradient:
      problem.m = rows, problem.n = shape.in, problem.k = shape.out;
      break;
    case GroupedOp::weight_gradient:
      problem.m = rows > 0 ? shape.out : 0, problem.n = shape.in, problem.k = rows, problem.a_by_k = true,
      problem.wide_c = shape.wide_sum;
      problem.adds = field(kGroupAdds) != 0;
      break;
  }
  return problem;
}

struct Free {
  void operator()(char* data) const { ::operator delete (data, std::align_val_t{64}); }
};
std::unique_ptr<char, Free> allocate_scratch(int64_t bytes) {
  return std::unique_ptr<char, Free>(
      static_cast<char*>(::operator new (static_cast<size_t>(bytes), std::align_val_t{64})));
}

// Writes zeros for a group of a weight gradient that has no rows, and thus no blocks.
void write_zeros(const GroupedProblem& problem, const GroupedShape& shape, Number number) {
  const bool half = number == Number::bf16 || number == Number::f16;
  const int64_t bytes = number == Number::f64 ? 8 : half && !shape.wide_sum ? 2 : 4;
  at::parallel_for(0, shape.out, std::max<int64_t>(1, 65536 / std::max<int64_t>(1, shape.in)),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i) {
                       std::memset(static_cast<char*>(problem.c) + i * problem.ldc * bytes, 0,
                                   static_cast<size_t>(shape.in * bytes));
                     }
                   });
}

// Returns the number of blocks.
int64_t set_blocks(std::vector<GroupBlocks>& groups, const GroupedCut& cut) {
  int64_t blocks = 0;
  for (GroupBlocks& of : groups) {
    of.first = blocks;
    of.m_blocks = (of.problem.m + cut.m - 1) / cut.m;
    if (of.m_blocks == 0) continue;
    of.m_size = std::min(cut.m, round_up((of.problem.m + of.m_blocks - 1) / of.m_blocks, 32));
    of.m_blocks = (of.problem.m + of.m_size - 1) / of.m_size;
    blocks += of.m_blocks * ((of.problem.n + cut.n - 1) / cut.n);
  }
  return blocks;
}

// The queue of all blocks. A thread takes several consecutive blocks, so that it can prefetch the next one.
struct Queue {
  const GroupedCut& cut;
  const std::vector<GroupBlocks>& groups;
  int64_t end, at_a_time;
  std::atomic<int64_t> next{0};
};

// `group`: group of the previous block.
GroupedWork next_work(const Queue& queue, int64_t i, size_t& group) {
  while (group + 1 < queue.groups.size() && queue.groups[group + 1].first <= i) ++group;
  const GroupBlocks& of = queue.groups[group];
  const int64_t m = (i - of.first) % of.m_blocks * of.m_size, n = (i - of.first) / of.m_blocks * queue.cut.n;
  return {of.problem, {m, std::min(of.problem.m, m + of.m_size), n, std::min(of.problem.n, n + queue.cut.n)}};
}

void compute_blocks(const GroupedChoice& choice, Queue& queue) {
  const auto scratch = allocate_scratch(queue.cut.scratch_bytes);
  if (choice.begin != nullptr) choice.begin();
  size_t group = 0;
  for (int64_t i = queue.next.fetch_add(queue.at_a_time); i < queue.end; i = queue.next.fetch_add(queue.at_a_time)) {
    const int64_t end = std::min(queue.end, i + queue.at_a_time);
    GroupedWork work = next_work(queue, i, group);
    while (++i < end) {
      const GroupedWork after = next_work(queue, i, group);
      choice.product(work, &after, scratch.get());
      work = after;
    }
    choice.product(work, nullptr, scratch.get());
  }
  if (choice.end != nullptr) choice.end();
}

}  // namespace

bool cpu_has(CpuNeeds needs) {
  static const CpuSets sets;
  switch (needs) {
    case CpuNeeds::nothing:
      return true;
    case CpuNeeds::avx2:
      return sets.avx2;
    case CpuNeeds::avx512:
      return sets.avx512;
    case CpuNeeds::avx512_bf16:
      return sets.avx512_bf16;
    case CpuNeeds::amx_bf16:
      return sets.amx_bf16;
    case CpuNeeds::amx_fp16:
      return sets.amx_fp16;
  }
  return false;
}

std::vector<const GroupedChoice*> grouped_choices(bool gpu, Number number, int capability) {
  std::vector<const GroupedChoice*> fit;
  for (const GroupedChoice& choice : kChoices) {
    const bool runs = !choice.gpu || (choice.from <= capability && capability < choice.below);
    if (choice.gpu == gpu && choice.number == number && runs && cpu_has(choice.needs)) fit.push_back(&choice);
  }
  return fit;
}

const GroupedChoice& grouped_choice(bool gpu, Number number, int capability) {
  return *grouped_choices(gpu, number, capability).at(0);
}

void group_ends(const int64_t* counts, int64_t groups, int64_t rows, int32_t* ends) {
  int64_t end = 0;
  for (int64_t group = 0; group < groups; ++group) {
    end = std::min(rows, end + std::max<int64_t>(0, counts[group]));
    ends[group] = static_cast<int32_t>(end);
  }
}

void grouped_arguments(const int64_t* counts, const GroupedSource& source, int64_t* arguments) {
  const GroupedOperand* const operands[] = {&source.a, &source.b, &source.c};
  const int64_t groups = source.groups, home = groups - source.replicas;
  int64_t first = 0;
  for (int64_t e = 0; e < groups; ++e) {
    const int64_t rows = std::max<int64_t>(0, std::min(counts[e], source.rows - first));
    for (int64_t i = 0; i < 3; ++i) {
      const GroupedOperand& operand = *operands[i];
      const bool in_replicas = operand.group_stride != 0 && e >= home;
      const int64_t at =
          operand.group_stride != 0 ? (in_replicas ? e - home : e) * operand.group_stride : first * operand.leading;
      arguments[(kPointerA + i) * groups + e] =
          reinterpret_cast<int64_t>(in_replicas ? operand.replicas : operand.base) + at * operand.element_bytes;
      arguments[(kLeadingA + i) * groups + e] = operand.leading;
    }
    arguments[kGroupRows * groups + e] = rows;
    arguments[kGroupAdds * groups + e] = e < home ? source.adds : source.replicas_add;
    arguments[kGroupFactor * groups + e] = make_factor(source, e);
    first += rows;
  }
}

void grouped_product_by(const GroupedChoice& choice, const int64_t* arguments, const GroupedShape& shape) {
  std::vector<GroupBlocks> groups;
  double work = 0;
  for (int64_t e = 0; e < shape.groups; ++e) {
    const GroupedProblem problem = make_problem(arguments, shape, e);
    if (shape.op == GroupedOp::weight_gradient && problem.k == 0 && !problem.adds)
      write_zeros(problem, shape, choice.number);
    groups.push_back({problem});
    work += static_cast<double>(problem.m) * static_cast<double>(problem.n) * static_cast<double>(problem.k);
  }
  const bool alone = work < 2e6 || at::in_parallel_region();
  const int64_t most = alone ? 1 : at::get_num_threads();
  // Wide blocks pack their rows less often; narrow blocks occupy all threads. Both give the same sums.
  GroupedCut cut = choice.cut();
  int64_t blocks = set_blocks(groups, cut);
  for (; blocks < 4 * most && most > 1 && cut.n > 64; blocks = set_blocks(groups, cut)) cut.n /= 2;
  const int64_t threads = std::min(most, blocks);
  Queue queue{cut, groups, blocks, threads <= 1 ? blocks : std::clamp<int64_t>(blocks / (8 * threads), 1, 4)};
  if (threads <= 1) return compute_blocks(choice, queue);
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) { compute_blocks(choice, queue); });
}

template <class T>
void grouped_product(const int64_t* arguments, const GroupedShape& shape) {
  static const GroupedChoice& choice = grouped_choice(false, kElementNumber<T>);
  grouped_product_by(choice, arguments, shape);
}

#define MPX_INSTANTIATE(T) template void grouped_product<T>(const int64_t*, const GroupedShape&)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels
