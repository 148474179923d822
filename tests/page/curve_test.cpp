// Tests of shorter and smoothed series, and of their drawings as text.
#include "page/curve.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <sstream>

#include <gtest/gtest.h>

#include "page/text_curve.h"

namespace metroplex::page::curve_test {
namespace {

Series make_series(const std::vector<double>& values) {
  Series series;
  for (const double value : values) series.append(static_cast<int64_t>(series.values.size()) + 1, value);
  return series;
}

Series random_series(size_t size) {
  std::mt19937 random(1);
  std::vector<double> values(size);
  for (double& value : values) value = static_cast<double>(random() % 1000);
  return make_series(values);
}

TEST(Curve, KeepsExtremesAndEnds) {
  Series series = random_series(100'003);
  series.values[43'210] = 1e9;
  series.values[77'777] = -1e9;
  const Series shorter = shorten(series, 4000);
  EXPECT_LE(shorter.values.size(), 4000);
  EXPECT_GT(shorter.values.size(), 2000);
  EXPECT_EQ(*std::max_element(shorter.values.begin(), shorter.values.end()), 1e9);
  EXPECT_EQ(*std::min_element(shorter.values.begin(), shorter.values.end()), -1e9);
  EXPECT_EQ(shorter.iterations.front(), 1);
  EXPECT_EQ(shorter.iterations.back(), 100'003);
  EXPECT_TRUE(std::is_sorted(shorter.iterations.begin(), shorter.iterations.end()));
  for (size_t i = 0; i < shorter.values.size(); ++i)
    EXPECT_EQ(shorter.values[i], series.values[static_cast<size_t>(shorter.iterations[i]) - 1]);
}

TEST(Curve, KeepsEveryBucketsExtremes) {
  const Series series = random_series(9'000);
  const Series shorter = shorten(series, 32);  // 10 buckets of 900
  for (size_t bucket = 0; bucket < 10; ++bucket) {
    const auto begin = series.values.begin() + static_cast<std::ptrdiff_t>(900 * bucket);
    const auto [low, high] = std::minmax_element(begin, begin + 900);
    for (const auto extreme : {*low, *high})
      EXPECT_NE(std::find(shorter.values.begin(), shorter.values.end(), extreme), shorter.values.end());
  }
}

TEST(Curve, KeepsNonFiniteValues) {
  Series series = random_series(50'000);
  series.values[30'000] = std::nan("");
  const Series shorter = shorten(series, 100);
  EXPECT_EQ(
      std::count_if(shorter.values.begin(), shorter.values.end(), [](double value) { return std::isnan(value); }), 1);
}

TEST(Curve, KeepsShortSeries) {
  const Series series = random_series(100);
  EXPECT_EQ(shorten(series, 100).values, series.values);
  EXPECT_TRUE(shorten(Series{}, 100).empty());
}

TEST(Curve, SmoothsByItsFormula) {
  // alpha = 2 / (3 + 1) = 1/2: (1/4 * 1 + 1/2 * 2) / (3/4) = 5/3; exact sums of powers of two, and one division.
  const Series out = smooth(make_series({1, std::nan(""), 2}), 3);
  EXPECT_EQ(out.values[0], 1);
  EXPECT_TRUE(std::isnan(out.values[1]));
  EXPECT_EQ(out.values[2], 1.25 / 0.75);
}

TEST(Curve, SmoothKeepsConstants) {
  // The sum and the weight each have at most 3 roundings per step, which decay with alpha = 2/11: 2 * 3 * 11/2 units
  // in the last place of 2^-53, and one division.
  for (const double value : smooth(make_series(std::vector<double>(1000, 0.1)), 10).values)
    EXPECT_NEAR(value, 0.1, 0.1 * 34 * 0x1p-53);
}

TEST(Curve, SmoothingStepsAreFiftiethOfSize) {
  EXPECT_EQ(smoothing_steps(0), 1);
  EXPECT_EQ(smoothing_steps(300), 6);
  EXPECT_EQ(smoothing_steps(1'000'000), 1000);
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

size_t characters(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char letter) { return (letter & 0xC0) != 0x80; }));
}

TEST(TextCurve, DrawsLineInAscii) {
  const Series series = make_series({0, 1, 2, 3});
  EXPECT_EQ(draw_curves("lm loss", {{"a", &series}}, {.columns = 30, .lines = 7, .ascii = true}),
            "lm loss\n"
            "3 |                      *****\n"
            "  |              ********\n"
            "1 |     *********\n"
            "0 |*****\n"
            "   1                         4\n"
            "   * a 3\n");
}

TEST(TextCurve, DrawsSeparatePoints) {
  const Series series = make_series({0, 1, 2, 3});
  EXPECT_EQ(draw_curves("t", {{"a", &series, false}}, {.columns = 30, .lines = 7, .ascii = true}),
            "t\n"
            "3 |                          *\n"
            "  |                 *\n"
            "1 |         *\n"
            "0 |*\n"
            "   1                         4\n"
            "   * a 3\n");
}

TEST(TextCurve, StaysWithinColumns) {
  const Series series = random_series(5000), other = make_series({-1e300, 1e300});
  for (const int columns : {30, 57, 200}) {
    for (const bool ascii : {false, true}) {
      const auto lines =
          split_lines(draw_curves("t", {{"run", &series}, {"b", &other}}, {columns, 12, ascii, false}));
      ASSERT_EQ(lines.size(), 12);
      for (size_t i = 0; i + 1 < lines.size(); ++i) EXPECT_LE(characters(lines[i]), static_cast<size_t>(columns));
    }
  }
}

TEST(TextCurve, AsciiHasOnlyAscii) {
  const Series series = random_series(100);
  const std::string text = draw_curves("t", {{"run", &series}}, {80, 12, true, false});
  EXPECT_TRUE(std::all_of(text.begin(), text.end(),
                          [](char letter) { return letter == '\n' || (letter >= ' ' && letter < 0x7F); }));
}

TEST(TextCurve, ColoursOnlyOnRequest) {
  const Series series = random_series(100);
  const std::vector<TextCurve> curves{{"a", &series}, {"b", &series}};
  EXPECT_EQ(draw_curves("t", curves, {80, 12, false, false}).find('\033'), std::string::npos);
  EXPECT_NE(draw_curves("t", curves, {80, 12, false, true}).find("\033[38;5;208m"), std::string::npos);
}

TEST(TextCurve, NaNInterruptsCurve) {
  const Series series = make_series({1, std::nan(""), 1});
  const std::string text = draw_curves("t", {{"a", &series}}, {.columns = 30, .lines = 6, .ascii = true});
  EXPECT_EQ(std::count(text.begin(), text.end(), '*'), 3);  // two points, and the legend
}

TEST(TextCurve, DrawsEmptyConstantAndHugeCurves) {
  for (const std::vector<double>& values :
       std::vector<std::vector<double>>{{}, {0}, {7, 7, 7}, {1.7e308, -1.7e308}, {std::nan("")}}) {
    const Series series = make_series(values);
    EXPECT_EQ(split_lines(draw_curves("t", {{"a", &series}}, {40, 10, false, false})).size(), 10);
  }
}

TEST(TextCurve, EscapesControlsOfLabels) {
  const Series series = make_series({1});
  EXPECT_EQ(draw_curves("t", {{"a\033[2J", &series}}, {40, 10, true, false}).find('\033'), std::string::npos);
}

}  // namespace
}  // namespace metroplex::page::curve_test
