"""The page about evaluation results."""

import re

from planted import write_result

from mmairl.report.evaluation_page import records_in, results, write_evaluation_page


def test_scores_of_different_images_do_not_merge(tmp_path):
    write_result(tmp_path, 'a', {'top-1': 60.0})
    write_result(tmp_path, 'a', {'top-1': 50.0}, data='pets')
    write_result(tmp_path, 'a', {'top-1': 40.0}, identity=dict(data=dict(images=7)))
    write_result(tmp_path, 'a', {'top-5': 90.0})
    found = results(records_in(tmp_path))
    assert found['flowers'] == {'a': {'top-1': 60.0, 'top-5': 90.0}} and found['pets'] == {
        'a': {'top-1': 50.0}
    }
    (other,) = found.keys() - {'flowers', 'pets'}
    assert found[other] == {'a': {'top-1': 40.0}}


def test_other_settings_and_weights_have_their_own_row(tmp_path):
    for number in (1, 2):
        write_result(
            tmp_path,
            'a',
            {'k-NN': float(number)},
            identity=dict(weights=f'w{number}', protocol=dict(k=1)),
        )
    write_result(tmp_path, 'a', {'k-NN': 9.0}, identity=dict(weights='w2', protocol=dict(k=5)))
    (rows,) = results(records_in(tmp_path)).values()
    assert sorted(row['k-NN'] for row in rows.values()) == [1, 2, 9]


def test_page_marks_the_best_and_shows_the_confusion(tmp_path):
    details = dict(confusion=dict(classes=['cat', 'dog'], counts=[[8, 2], [1, 9]]))
    for name, score in (('a', 60.0), ('b', 70.0), ('c', 65.0)):
        write_result(tmp_path, name, {'k-NN': score, 'RMSE (m)': score / 100}, details=details)
    (tmp_path / 'other.json').write_text('[1]')
    text = write_evaluation_page(tmp_path).read_text()
    assert re.findall(r'class="best">\s*([\d.]+)', text) == ['0.600', '70.0']
    assert text.count('flowers, knn of a') == 1
