// SPDX-License-Identifier: Apache-2.0
#include "tuning/gaussian_process.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace hvd {
namespace {

constexpr double kLength = 0.5;   // length scale: half the cube, because settings act smoothly on a logarithmic scale
constexpr double kJitter = 1e-6;  // keeps the matrix positive definite when points repeat without noise

double Kernel(const GaussianProcess::Point& a, const GaussianProcess::Point& b) {
  double distance = 0;
  for (size_t i = 0; i < a.size(); ++i) distance += (a[i] - b[i]) * (a[i] - b[i]);
  return std::exp(-distance / (2 * kLength * kLength));
}

double Product(const std::vector<double>& a, const std::vector<double>& b, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

void GaussianProcess::Fit(std::vector<Point> points, const std::vector<double>& values) {
  points_ = std::move(points);
  triangle_.assign(points_.size(), std::vector<double>(points_.size(), 0.0));
  for (size_t i = 0; i < points_.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const double rest = Kernel(points_[i], points_[j]) - Product(triangle_[i], triangle_[j], j);
      triangle_[i][j] = rest / triangle_[j][j];
    }
    const double rest = 1 + noise_ * noise_ + kJitter - Product(triangle_[i], triangle_[i], i);
    triangle_[i][i] = std::sqrt(std::max(rest, kJitter));
  }
  whitened_ = Solve(values);
}

std::vector<double> GaussianProcess::Solve(std::vector<double> right) const {
  for (size_t i = 0; i < right.size(); ++i) {
    right[i] = (right[i] - Product(triangle_[i], right, i)) / triangle_[i][i];
  }
  return right;
}

GaussianProcess::Estimate GaussianProcess::At(const Point& point) const {
  std::vector<double> near(points_.size());
  for (size_t i = 0; i < points_.size(); ++i) near[i] = Kernel(point, points_[i]);
  near = Solve(std::move(near));
  const double explained = Product(near, near, near.size());
  return {Product(near, whitened_, near.size()), std::sqrt(std::max(1 - explained, 0.0))};
}

double GaussianProcess::ExpectedImprovement(const Point& point, double best) const {
  const Estimate estimate = At(point);
  if (estimate.deviation <= 0) return std::max(estimate.mean - best, 0.0);
  const double z = (estimate.mean - best) / estimate.deviation;
  const double density = std::exp(-z * z / 2) / std::sqrt(2 * M_PI);
  const double probability = std::erfc(-z / std::sqrt(2.0)) / 2;
  return (estimate.mean - best) * probability + estimate.deviation * density;
}

}  // namespace hvd
