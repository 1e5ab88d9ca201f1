// SPDX-License-Identifier: Apache-2.0
// Gaussian process regression on a few noisy points in a unit cube: it estimates the mean and the deviation at any
// point. Squared exponential kernel, exact inference; meant for tens of points, not thousands.
#pragma once

#include <array>
#include <vector>

namespace hvd {

class GaussianProcess {
 public:
  using Point = std::array<double, 3>;  // coordinates from 0 to 1
  struct Estimate {
    double mean, deviation;
  };

  // `noise` is the standard deviation of a measurement, for a function that varies by about 1 around 0.
  explicit GaussianProcess(double noise) : noise_(noise) {}

  void Fit(std::vector<Point> points, const std::vector<double>& values);
  Estimate At(const Point& point) const;
  // Return by how much the value at `point` is expected to exceed `best`; a lower value counts as 0.
  double ExpectedImprovement(const Point& point, double best) const;

 private:
  std::vector<double> Solve(std::vector<double> right) const;  // forward substitution with the lower triangle

  double noise_;
  std::vector<Point> points_;
  std::vector<std::vector<double>> triangle_;  // Cholesky factor of the kernel matrix
  std::vector<double> whitened_;               // triangle^-1 * values
};

}  // namespace hvd
